import math

import pytest
import torch

from trainables.losses import build_loss


def naive_cross_entropy(rows, targets):
    return [-math.log(p[y]) for p, y in zip(rows, targets, strict=True)]


def naive_label_smoothing(alpha, form):
    def values(rows, targets):
        out = []
        for p, y in zip(rows, targets, strict=True):
            classes, total = len(p), 0.0
            for k in range(classes):
                if form == "others":
                    v = 1 - alpha if k == y else alpha / (classes - 1)
                else:
                    v = (1 - alpha if k == y else 0.0) + alpha / classes
                total -= v * math.log(p[k])
            out.append(total)
        return out

    return values


def naive_brier(rows, targets):
    return [sum((p[k] - (k == y)) ** 2 for k in range(len(p))) for p, y in zip(rows, targets, strict=True)]


def test_cross_entropy_equals_reference(reference):
    reference.check(build_loss("cross_entropy"), naive_cross_entropy)
    reference.check_gradient(build_loss("cross_entropy"))


@pytest.mark.parametrize("form", ["others", "uniform"])
@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.3])
def test_label_smoothing_equals_reference(reference, alpha, form):
    loss = build_loss("label_smoothing", alpha=alpha, form=form)
    reference.check(loss, naive_label_smoothing(alpha, form))
    reference.check_gradient(loss, range(3))


def test_brier_equals_reference(reference):
    reference.check(build_loss("brier"), naive_brier)
    reference.check_gradient(build_loss("brier"))


def test_uniform_label_smoothing_is_torchs_own(reference):
    for seed in range(8):
        logits, targets = reference.batch(seed)
        own = build_loss("label_smoothing", alpha=0.1, form="uniform")(logits, targets)
        torchs = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
        torch.testing.assert_close(own, torchs, rtol=1e-12, atol=1e-12)


def test_the_two_forms_agree_at_epsilon_alpha_k_over_k_minus_1(reference):
    for seed in range(8):
        logits, targets = reference.batch(seed)
        classes = logits.shape[-1]
        others = build_loss("label_smoothing", alpha=0.1, form="others")(logits, targets)
        uniform = build_loss("label_smoothing", alpha=0.1 * classes / (classes - 1), form="uniform")(logits, targets)
        torch.testing.assert_close(others, uniform, rtol=1e-12, atol=1e-12)


def test_released_brier_summed_over_a_batch_has_the_gradients_of_the_mean(reference):
    for seed in range(8):
        logits, targets = reference.batch(seed)
        paper, released = (logits.clone().requires_grad_() for _ in range(2))
        build_loss("brier")(paper, targets).backward()
        loss = build_loss("brier", form="released")
        (len(targets) * loss(released, targets)).backward()  # what `reduction: sum` makes of a loss
        torch.testing.assert_close(released.grad, paper.grad)
        assert loss.frozen(logits, targets)(logits, targets) == build_loss("brier")(logits, targets)


def test_brier_lies_between_0_and_2():
    logits = torch.tensor([[100.0, 0.0], [100.0, 0.0]])
    values = build_loss("brier").per_sample(logits, torch.tensor([0, 1]))
    assert values.tolist() == [0.0, 2.0]
