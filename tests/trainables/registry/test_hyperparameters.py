"""Hyperparameters as signatures and docstrings declare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from trainables.losses.base import LossComponent
from trainables.registry import ExtensionError, Hyperparameter, Registry, number_in
from trainables.registry.hyperparameters import hyperparameters_of

Share = Annotated[float, Hyperparameter(range="[0, 1)", reason="at 1 nothing is left", source="ours")]


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
        steps: of the search; a search takes one at least [Smith 2001, Table 2: 30 of
            100].
    """

    steps: Annotated[int | None, "[1, inf)"] = None


def build(
    shape,
    gamma: Annotated[float | Tensor, "(0, 2.5]"] = 1.0,
    share: Share = 0.5,
    score: Annotated[str, ("msp", "margin")] = "msp",
    form: Literal["others", "uniform"] = "others",
    kinds: Sequence[str] = ("fog",),
    vectors: Tensor | None = None,
    **others: object,
) -> int:
    """Build it.

    A thing.

    Source: ours; theirs,
    chapter 2.

    Args:
        shape: [C, H, W].
        gamma: a negative γ rewards mistakes [Lin et al. 2017].
        share: [theirs].
        score: [selective, Table 1].

    Raises:
        ValueError: never.
    """
    return 1


def _of(target, *leading, apart=()):
    return {h.name: h for h in hyperparameters_of(target, "it", leading, apart)}


def test_an_annotation_says_what_is_valid_and_the_docstring_why_and_after_whom():
    found = _of(build, "shape", apart=["vectors"])
    assert [*found] == ["gamma", "share", "score", "form", "kinds"]
    assert found["gamma"] == Hyperparameter(
        "gamma", default=1.0, range="(0, 2.5]", reason="a negative γ rewards mistakes", source="Lin et al. 2017"
    )
    assert (found["share"].range_text, found["share"].reason) == ("[0, 1)", "at 1 nothing is left")
    assert found["share"].source == "theirs"
    assert (found["score"].choices, found["score"].source) == (("msp", "margin"), "selective, Table 1")
    assert (found["form"].kind, found["form"].choices) == ("text", ("others", "uniform"))
    assert (found["kinds"].kind, found["kinds"].default) == ("texts", ("fog",))


def test_fields_of_a_dataclass_are_read_as_arguments():
    assert _of(Recipe)["steps"] == Hyperparameter(
        "steps",
        "integer",
        minimum=1,
        open_maximum=True,
        reason="of the search; a search takes one at least",
        source="Smith 2001, Table 2: 30 of 100",
    )


def test_an_annotation_of_ours_that_cannot_be_read_is_an_error_at_once():
    def unreadable(gamma: Missing = 1.0):  # noqa: F821 - the point
        pass

    with pytest.raises(NameError):
        _of(unreadable)
    assert hyperparameters_of(unreadable, "m:t", [])[0].kind == "number"


def test_what_is_added_has_its_arguments_and_its_flags():
    registry = Registry("thing", None, LossComponent, ["shape"])

    @registry.add("first", "one", "ours", more=[Hyperparameter("beams")], tags={"text"}, constant_gamma=len)
    class First:
        """The first."""

        name, stateful = "", True

        def __init__(self, shape: int, width: Annotated[int, "[1, inf)"] = 4) -> None: ...

    registry.add("bound", "two", apart=["vectors"])(partial(build, score="margin"))
    registry.add("described", apart=["vectors"])(build)
    assert (registry["described"].summary, registry["described"].source) == ("Build it", "ours; theirs, chapter 2")
    first, bound = registry["first"], registry["bound"]
    assert (first.summary, first.source, first.tags, first.constant_gamma) == ("one", "ours", {"text", "stateful"}, len)
    assert ([h.name for h in first.hyperparameters], First.name) == (["width", "beams"], "first")
    assert [h.name for h in bound.hyperparameters] == ["gamma", "share", "form", "kinds"]
    assert registry.build("bound", 1, gamma=2.0) == 1
    with pytest.raises(ValueError, match=r"gamma = -1 is outside \(0, 2.5\]: a negative γ rewards mistakes"):
        registry.build("bound", 1, gamma=-1)


def _kinds(target, *leading):
    return {name: (h.kind, h.default, h.required) for name, h in _of(target, *leading, apart=None).items()}


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

    assert _kinds(loss, "logits", "targets") == {
        "a": ("number", None, True), "b": ("integer", 3, False), "c": ("boolean", False, False),
        "d": ("text", "x", False), "e": ("text", "q", False), "f": ("numbers", (1.0, 2.0), False),
        "g": ("number", None, False), "h": ("number", 2.5, False), "i": ("number", 1, False),
        "j": ("numbers", (), False),
    }  # fmt: skip
    assert _of(loss, "logits", "targets", apart=None)["e"].choices == ("p", "q")


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


@pytest.mark.parametrize(
    ("value", "expected"),
    [(20, 20), (0.1, 0.1), (np.float32(0.5), 0.5), (np.int64(3), 3.0), (torch.tensor(0.5), 0.5), (None, 3.0)],
)
def test_numbers_of_any_library_are_read_and_the_default_stands_for_none(value, expected):
    found = number_in({"gamma": value}, "gamma", 3.0)
    assert (found, type(found)) == (expected, type(expected))
    assert number_in({}, "gamma", 3.0) == 3.0 and number_in({}, "gamma", None) is None


@pytest.mark.parametrize("value", ["3", [3.0]])
def test_anything_else_is_refused_with_its_name_and_value(value):
    with pytest.raises(ValueError, match=r"gamma = .* must be a number"):
        number_in({"gamma": value}, "gamma", None)
