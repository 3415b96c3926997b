"""The first screen in words and in terminals of different widths: one test a sentence."""

import io
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.core.statistics.basics import Spread
from sweeper.judging.means import Mean
from sweeper.judging.question import BETTER, OPEN, SAME, SAMPLES, SEEDS, Question as Asked, Verdict, Verdicts
from sweeper.judging.trends import Trend
from sweeper.reporting.answering.answers import (
    ALIKE,
    ALONE,
    BEST,
    DECIDED,
    EQUAL,
    EQUIVALENT,
    NEARLY_DECIDED,
    NOT_DECIDED,
    NOT_JUDGED,
    STOPPED,
    UNFINISHED,
    WORSE,
    Along,
    Answer,
    Finalist,
    FirstScreen,
    Question,
    Use,
)  # fmt: skip
from sweeper.reporting.sentences import (
    along_table,
    cells,
    curvature_in_words,
    deployment,
    glossaries,
    lead,
    leads_both,
    line_in_words,
    numbers,
    remedy,
    sentences,
    settings,
    words_of,
)  # fmt: skip
from sweeper.reporting.summary import terminal
from sweeper.results.deployed import Deployed
from sweeper.results.estimators import Judgement
from sweeper.results.leaderboard import Goal
from sweeper.results.selection import Ranked, Selection
from tests.sweeper.reporting.test_first_screen import shared_screen
from tests.sweeper.reporting.test_page import Page, squeezed

#: A mean and the one that it is compared with, of each verdict.
VALUES = {WORSE: (0.056, 0.020), BETTER: (0.010, 0.033), SAME: (0.019, 0.0197), OPEN: (0.020, 0.018)}


def judgement(after: float, before: float, code: str, largest: float = 0.0049, **lacks: object) -> Judgement:
    change = after - before
    verdict = Verdict(
        code, "ece", "", 0.01, 0.95, "before", change, change - 0.004, change + 0.004, largest, seeds=(0, 1, 2),
        **lacks,  # type: ignore[arg-type]
    )  # fmt: skip
    return Judgement("ECE, 15 bins", (after, before), (0.003, 0.004), verdict)


def line(loss: str, network: str, standing: str, value: float, change: Judgement | None, **more: str) -> Finalist:
    known = {"place": "", "setting": "", "trial": "c00001", "configuration": "lr 0.1"} | more
    return Finalist(
        loss=loss, network=network, standing=standing, value=Spread(value, 0.001, 3), change=change, epoch=27, **known
    )


LEADER = line("cross_entropy", "resnet8", BEST, 0.047, judgement(0.012, 0.013, SAME))
RIVAL = line("inverse_focal", "resnet8", ALIKE, 0.055, judgement(0.010, 0.020, BETTER))
MLP = line("cross_entropy", "mlp", WORSE, 0.11, judgement(0.02, 0.021, OPEN, limited_by=SAMPLES))
LOSS = Question("loss", ("cross_entropy", "inverse_focal"), ("focal",), ())
NETWORK = Question("network", ("resnet8",), ("mlp",), ())

ANSWER = Answer(
    place="", state=NEARLY_DECIDED, running=False, objective=Goal("val_nll"), leader=LEADER, most_lost=0.3,
    relative=True, questions=(LOSS, NETWORK), finalists=(LEADER, RIVAL, MLP), between=None, seeds=3,
    fresh=False, trainings=9, command="sweeper resume s --set replicates=6", seconds=2.8,
)  # fmt: skip


@pytest.mark.parametrize("state", [DECIDED, NEARLY_DECIDED, NOT_DECIDED, NOT_JUDGED, ALONE, UNFINISHED])
@pytest.mark.parametrize("change", [LEADER.change, judgement(0.012, 0.040, BETTER)])
def test_every_state_names_the_leader_with_its_numbers(state: str, change: Judgement) -> None:
    answer = replace(ANSWER, state=state, leader=replace(LEADER, change=change), fresh=state == DECIDED)
    answer = replace(answer, questions=(replace(LOSS, unknown=("selective_risk",)), NETWORK), place="label noise 0.1")
    text = f"{lead(answer)} {numbers(answer)}"
    ece = change.means[0 if change.code == BETTER else 1]
    expected = [f"{ece:.3f}", "0.047", *(["27"] if state == UNFINISHED else [])]
    for part in ("cross_entropy", "resnet8", "label noise 0.1", *expected):
        assert part in text, text
    assert ("30 %" in text) == (state in (NEARLY_DECIDED, NOT_DECIDED)) and "{" not in text
    assert ("selective_risk" in text) == (state == DECIDED), text
    for trainings, parts in ((9, ("9", "25 s")), (0, ())):
        advice = remedy(replace(answer, trainings=trainings))
        assert all(part in advice for part in (*parts, f"`{ANSWER.command}`"))
    assert bool(remedy(replace(answer, command=""))) == (state in (NEARLY_DECIDED, NOT_DECIDED))


def test_equal_within_the_margin() -> None:
    rival = replace(RIVAL, standing=EQUAL)
    equal = replace(ANSWER, state=EQUIVALENT, command="", finalists=(LEADER, rival, MLP))
    assert all(part in lead(equal) for part in ("the margin", "90 %", "3 seeds"))
    assert [cells(each, equal).standing for each in equal.finalists] == ["best", "as good", "worse"]
    assert "same" in words_of(FirstScreen((equal,), "", ()))


def test_a_cost_that_says_nothing_is_no_recommendation() -> None:
    for lost, relative, bounded in ((0.66, True, True), (4.45, True, False), (4.45, False, True), (None, True, False)):
        answer = replace(ANSWER, state=NOT_DECIDED, most_lost=lost, relative=relative)
        assert answer.is_bounded is bounded
        assert bounded or lost is None or "%" not in lead(answer)


@pytest.mark.parametrize("codes", itertools.product([WORSE, BETTER, SAME, OPEN], repeat=2))
def test_of_two_losses_both_changes_are_told_with_their_numbers(codes: tuple[str, str]) -> None:
    before, after = (judgement(*VALUES[code], code) for code in codes)
    rival = replace(RIVAL, loss="focal", setting="γ 3")
    text = lead(replace(ANSWER, between=(rival, LEADER, before, after))).partition(" Use ")[0]
    assert "cross_entropy" in text and "focal γ 3" in text
    for code, (value, reference) in ((code, VALUES[code]) for code in codes):
        shown = {SAME: "0.005", OPEN: f"{value - reference + 0.004:.3f}"}
        assert shown.get(code, f"{abs(value - reference):.3f}") in text, text


def test_cells() -> None:
    found = [cells(each, ANSWER) for each in ANSWER.finalists]
    assert [cell.verdict for cell in found] == ["≤ 0.005", "lower", "open: more samples"]
    assert [cell.standing for cell in found] == ["best", "as good?", "worse"]
    assert (found[1].ece, found[1].change, found[1].around) == ("0.020 → 0.010", "−0.010", "−0.014 … −0.006")
    same = replace(ANSWER, finalists=(LEADER, RIVAL, replace(RIVAL, trial="c00009")))
    assert [cells(each, same).standing for each in same.finalists] == ["best", "", ""], "a mark that all have"
    stopped = replace(RIVAL, standing=STOPPED, epoch=9, change=None)
    assert cells(stopped, ANSWER).standing == "stopped at 9" and cells(stopped, ANSWER).verdict == ""
    both = judgement(0.02, 0.021, OPEN, limited_by=SEEDS, seeds_needed=8)
    assert cells(replace(RIVAL, change=both), ANSWER).verdict == "open: +5 seeds"


def test_settings() -> None:
    gamma = Question("γ", ("2", "3"), ("1", "5"), (), ("focal", "mlp"))
    one, unknown = replace(gamma, best=("2",)), replace(gamma, best=("2",), worse=(), unknown=("1",))
    assert settings(replace(ANSWER, questions=(LOSS, gamma, one, unknown))) == [
        "γ of focal on mlp: 2 and 3 may be the best; 1 and 5 are worse.",
        "γ of focal on mlp: 2 is the best (90 % sure); 1 and 5 are worse.",
        "γ of focal on mlp: 2 has the best mean; seeds cannot judge it.",
    ]


def test_a_line_tells_its_price_and_how_curvature_changes() -> None:
    def verdict(code: str, estimate: float) -> Verdict:
        return Verdict(code, "m", "", 0, 0.95, "0", estimate, estimate - 0.01, estimate + 0.01)

    falls = Trend((14.0, 9.0, 5.0), (verdict(BETTER, -5), verdict(BETTER, -4)), verdict(BETTER, -9))
    still = Trend((14.0, 13.0, 14.0), (verdict(OPEN, -1), verdict(OPEN, 1)), verdict(OPEN, 0))
    accuracy = {"3": verdict(OPEN, -0.002), "8": verdict(WORSE, -0.026)}
    curvature = {"hessian_training_lambda_max": falls, "hessian_cross_entropy_lambda_max": still}
    along = Along(("0 (cross_entropy)", "3", "8"), "0 (cross_entropy)", accuracy, curvature)
    gamma = Question("γ", ("0 (cross_entropy)", "3"), ("8",), (), ("focal", "mlp"), along=along)
    assert "8 −2.6 points (−3.6 … −1.6), 3 open" in line_in_words(gamma)
    assert "14 → 9 → 5; each step 95 %" in curvature_in_words(gamma) and "cross-entropy: open" in curvature_in_words(
        gamma
    )
    (_, said) = settings(replace(ANSWER, questions=(LOSS, gamma), ece_by_trace=(None, 3)))
    assert said.startswith(curvature_in_words(gamma)) and said.endswith("(3).")
    (_, short) = settings(replace(ANSWER, questions=(LOSS, gamma), ece_by_trace=(None, 3)), brief=True)
    assert short == curvature_in_words(gamma)
    heads, rows = along_table(gamma)
    assert len(heads) == 4 and [row[0] for row in rows] == [*along.values]
    assert rows[0][1:] == ["", "14", "14"] and rows[2][1:] == ["−2.6 (−3.6 … −1.6)", "5 ↓", "14 ?"]
    only = replace(gamma, along=replace(along, curvature={"hessian_cross_entropy_lambda_max": still}))
    assert curvature_in_words(only) == "λ_max of cross-entropy: open." and not curvature_in_words(LOSS)


def test_a_selective_finalist_has_accuracy_at_the_coverage_and_aurc() -> None:
    def ranked(code: str, *means: float) -> Ranked:
        verdict = Verdict(code, "m", "", 0, 0.95, "b")
        return Ranked((means[0], means[-1]), (verdict, verdict))

    one = Selection("a", "b", 0.8, ranked(OPEN, 0.99), ranked(OPEN, 0.001, 0.002))
    finalists = (replace(LEADER, trial="a"), replace(RIVAL, trial="b"))
    answer = replace(ANSWER, questions=(), selective=(one,), finalists=finalists)
    assert settings(answer, brief=True) == []
    (said,) = settings(answer)
    assert "99.0 % (open)" in said and "0.001 → 0.002 (open)" in said and RIVAL.words in said
    clear = replace(one, aurc=ranked(WORSE, 0.001, 0.002))
    (said,) = settings(replace(answer, selective=(clear,)), brief=True)
    assert "0.001 → 0.002 (worse)" in said


def test_every_standing_and_verdict_has_a_tooltip() -> None:
    found = FirstScreen((ANSWER,), "", ())
    assert {"best", "alike", "worse", "better change", "same change", "open change"} <= {*words_of(found)}
    assert "stopped" not in words_of(found) and "fresh seeds" not in words_of(found)
    assert all(glossaries()[0][word] for word in words_of(found))


@pytest.mark.parametrize("width", [140, 80])
def test_a_screen_fits_a_terminal(quickstart_folder: Path, width: int) -> None:
    found = shared_screen(quickstart_folder)
    console = Console(width=width, height=100, file=io.StringIO())
    console.print(terminal(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    rows = text.splitlines()
    assert (
        len(rows) <= (24 if width == 80 else 26)
        and all(len(row) <= width for row in rows)
        and "…" not in text.replace(" … ", "")
    )
    (answer,) = found.answers
    for one in answer.finalists:
        cell = cells(one, answer)
        assert cell.value in text and cell.ece in text and cell.after in text
        assert (cell.around in text) == (width == 140 or not cell.around)


def test_the_page_begins_with_the_sentence_and_a_row_for_each_finalist(quickstart_folder: Path) -> None:
    found = shared_screen(quickstart_folder)
    text = (quickstart_folder / "report.html").read_text("utf-8")
    summary = squeezed(Page(text).sections["summary"])
    for answer in found.answers:
        told = (lead(answer), deployment(answer), remedy(answer), *settings(answer))
        assert all(squeezed(sentence).replace("`", "") in summary for sentence in told)
        assert all(sentence in sentences(found)[0] for sentence in told)
        for one in answer.finalists:
            assert all(squeezed(part) in summary for part in vars(cells(one, answer)).values())
            assert squeezed(one.words) in summary and one.trial in summary
    assert text.index('<p class="lead">') < text.index('finalists" tabindex') < text.index('<section class="tiles"')


def used(line: Finalist, before: float, after: float, standing: str) -> Finalist:
    return replace(line, used=Use((before, after), Mean(0.978, 0.96, 0.99, 3), standing))


def test_the_order_with_temperature_scaling_is_told() -> None:
    question = Asked(["a", "b"], "test_nll", relative=True)
    leader, rival = used(LEADER, 0.05, 0.06, WORSE), used(replace(RIVAL, trial="c00002"), 0.09, 0.04, BEST)

    def verdicts(first: Finalist, other: Finalist, code: str) -> Verdicts:
        sides = (first, BETTER if code == WORSE else code), (other, code)
        of = {line.trial: Verdict(c, "test_nll", "", 0, 0.9) for line, c in sides}
        return Verdicts(question, first.trial, of)

    raw = verdicts(leader, rival, WORSE)
    for after, named in ((verdicts(rival, leader, WORSE), True), (raw, False)):
        answer = replace(
            ANSWER, leader=leader, finalists=(leader, rival),
            deployed=Deployed(after, True, {}, {}),
        )  # fmt: skip
        assert leads_both(answer) != named and (deployment(answer) == "") != named
        said = f"{lead(answer)} {deployment(answer)}"
        assert ("inverse_focal on resnet8" in said) == named and ("0.040" in said) == named == ("0.060" in said)
        assert "97.8 % (96.0–99.0)" in said
    open_ones = replace(verdicts(leader, rival, OPEN), most_lost_ratio=0.05)
    alike = replace(answer, deployed=Deployed(open_ones, True, {}, {}))
    assert "at most 5 %" in lead(alike)
    assert "inverse_focal may be as good" in deployment(replace(alike, state=NOT_DECIDED))
    assert cells(rival, alike).after == cells(LEADER, answer).standing == "best" and not cells(LEADER, answer).after
    without = replace(answer, deployed=Deployed(raw, False, {}, {}))
    undecided = deployment(replace(without, state=NOT_DECIDED))
    assert "97.8 %" in undecided and undecided.startswith("Without")
    assert cells(leader, without).nll == "0.060, 0.050" and cells(leader, answer).nll == "0.050 → 0.060"
    assert deployment(ANSWER) == "" == deployment(replace(answer, state=UNFINISHED))
