"""BLEU by hand, and what asks for it."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from trainables.metrics.base import further_metric_columns, further_metric_names
from trainables.metrics.bleu import TEMPERATURES, BleuUnavailableError, Decoding, bleu, column_at, decoding_of


def test_it_is_the_geometric_mean_of_precisions_and_brevity() -> None:
    # Papineni et al. 2002, Eqs. 2 and 3: six of seven words, four of six pairs, two of five triples, one of four
    translation, reference = "the cat sat on the red mat", "the cat sat on the mat today now"
    precisions = (6 / 7, 4 / 6, 3 / 5, 2 / 4)
    brevity = math.exp(1 - 8 / 7)
    expected = 100 * brevity * math.exp(np.mean(np.log(precisions)))
    assert bleu([translation], [reference]) == pytest.approx(expected)


def test_the_corpus_is_scored_as_a_whole() -> None:
    assert bleu(["a b c d e", "x"], ["a b c d e", "x y z w v"]) == pytest.approx(100 * math.exp(1 - 10 / 6))
    assert bleu(["a b c d"], ["a b c d"]) == pytest.approx(100)


def test_without_sacrebleu_the_remedy_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(BleuUnavailableError, match=r"pip install 'calibration-sweeper\[translation\]'"):
        bleu(["a"], ["a"])


def test_how_sentences_are_decoded_is_read_from_the_metrics() -> None:
    assert decoding_of(()) is None
    assert decoding_of((("skce", {}),)) is None
    assert decoding_of((("bleu", {"beams": 2, "length_penalty": 1.0}),)) == Decoding(2, 1.0, False)
    assert decoding_of((("bleu_by_temperature", {}),)) == Decoding(by_temperature=True)


def test_their_columns_are_declared() -> None:
    names = further_metric_names(["bleu", "bleu_by_temperature"], "")
    assert {"bleu", "best_bleu", *(column_at("bleu", each) for each in TEMPERATURES)} <= set(names)
    assert column_at("ece", 0.9) == "ece_at_0_9"


def test_of_probabilities_there_is_no_bleu() -> None:
    row = further_metric_columns((("bleu", {}),), np.full((20, 2), 0.5), np.arange(20) % 2)
    assert "choose the data set wmt14_en_de" in str(row["metrics_unavailable"])
