"""A cross-fitted method never sees the samples that it calibrates."""

import numpy as np
import pytest

from tests.trainables.predictions import drawn_predictions
from trainables.metrics.refinement import FOLDS, folds_of
from trainables.posthoc import PosthocUnavailable, fit
from trainables.posthoc.cross_fitting import cross_fitted


@pytest.mark.parametrize(("method", "options"), [("temperature", {}), ("temperature", {"objective": "ece"})])
def test_each_fold_is_calibrated_by_a_fit_on_the_others(method, options):
    logits, targets = drawn_predictions(1, 200, 4, 4)
    found, fold = cross_fitted(method, logits, targets, options), folds_of(targets)
    for each in range(FOLDS):
        expected = fit(method, logits[fold != each], targets[fold != each], **options)(logits[fold == each])
        assert (found[fold == each] == expected).all()


def test_fewer_samples_than_folds_are_refused():
    with pytest.raises(PosthocUnavailable, match="4 samples are fewer than the 5 folds"):
        cross_fitted("temperature", np.zeros((4, 2)), [0, 1, 0, 1], {})
