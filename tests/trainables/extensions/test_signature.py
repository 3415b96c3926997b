"""Hyperparameters read from a signature: kinds, defaults, ranges, and every argument that cannot be read."""

from __future__ import annotations

from typing import Literal

import pytest

from trainables.extensions.signature import hyperparameters_of
from trainables.registry import ExtensionError, Hyperparameter


def _kinds(target, leading=()):
    return {h.name: (h.kind, h.default, h.required) for h in hyperparameters_of(target, "m:t", list(leading))}


def test_types_and_defaults_tell_the_kind():
    def loss(
        logits,
        targets,
        a: float,
        b: int = 3,
        c: bool = False,
        d: str = "x",
        e: Literal["p", "q"] = "q",
        f: list[float] = (1.0, 2.0),
        g: float | None = None,
        h=2.5,
        i: int | float = 1,
        *,
        j: tuple[float, ...] = (),
    ):
        pass

    assert _kinds(loss, ("logits", "targets")) == {
        "a": ("number", None, True), "b": ("integer", 3, False), "c": ("boolean", False, False),
        "d": ("text", "x", False), "e": ("text", "q", False), "f": ("numbers", (1.0, 2.0), False),
        "g": ("number", None, False), "h": ("number", 2.5, False), "i": ("number", 1, False),
        "j": ("numbers", (), False),
    }  # fmt: skip
    (choice,) = [h for h in hyperparameters_of(loss, "m:t", ["logits", "targets"]) if h.name == "e"]
    assert choice.choices == ("p", "q")


def test_a_class_is_read_by_its_constructor_inherited_or_not():
    class Base:
        def __init__(self, width: int = 4) -> None: ...

    class Derived(Base):
        """Takes what its base takes."""

    assert _kinds(Derived) == {"width": ("integer", 4, False)}


def test_a_declaration_counts_more_than_the_signature():
    class Declared:
        HYPERPARAMETERS = (Hyperparameter("gamma", default=1.0, minimum=0.0),)

        def __init__(self, **anything) -> None: ...

    (gamma,) = hyperparameters_of(Declared, "m:t", [])
    assert gamma.minimum == 0.0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (lambda logits, targets, a, b=None: 0, ["the type of a is not known", "the type of b is not known"]),
        (lambda logits, targets, **more: 0, ["**more cannot be given"]),
        (lambda logits: 0, ["called with (logits, targets, …), but takes (logits)"]),
        (lambda *, logits, targets: 0, ["called with (logits, targets, …)"]),
    ],
)
def test_every_unreadable_argument_is_reported_at_once(target, said):
    with pytest.raises(ExtensionError) as caught:
        hyperparameters_of(target, "m:t", ["logits", "targets"])
    for words in said:
        assert words in str(caught.value)
