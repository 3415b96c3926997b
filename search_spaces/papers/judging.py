"""Judge the claims of a sweep: input rows, verdicts, and their text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from search_spaces.papers.claims import CLAIMS
from search_spaces.papers.claims.base import Verdict
from search_spaces.papers.claims.curvature import LAYER_TRACE
from sweeper.core.cells import Row, Value, text_of
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from trainables.registry import entry_label
from trainables.registry.names import hint

#: The focal networks that were trained to the end.
FOCAL_SQL = """
SELECT trial, replicate, epoch, config_loss_gamma FROM final
          WHERE split = 'val' AND stage = 'end' AND config_loss_name = 'focal'"""

#: The mean of (1 − p_y)^γ over the validation samples of each focal network at its last evaluation. Computed in SQL,
#: since logits of large sweeps do not fit in memory; the largest logit is subtracted so that exp does not overflow, and
#: rounding below 0 is cut off so that a fractional power is no NaN.
WEIGHTS_SQL = f"""
SELECT trial, replicate, avg(pow(greatest(0, 1 - exp(z[target + 1]) / list_sum(list_transform(z, lambda x: exp(x)))),
  gamma)) AS weight
FROM (
  SELECT trial, replicate, target, gamma, list_transform(z, lambda x: x - list_max(z)) AS z
  FROM (
    SELECT p.trial, p.replicate, p.target, f.config_loss_gamma AS gamma, p.logits::DOUBLE[] AS z
    FROM predictions AS p
    JOIN ({FOCAL_SQL}) AS f
      ON p.trial = f.trial AND p.replicate = f.replicate AND p.epoch = f.epoch
    WHERE p.split = 'val'
  )
)
GROUP BY trial, replicate
"""


def named_claims(results: Results) -> list[str]:
    """Return the existing claims that the sweep's header names."""
    header = results.specification.get("header") or {}
    return [name for name in header.get("claims") or () if name in CLAIMS]


def judge_claims(results: Results, names: Sequence[str] | None = None) -> list[Verdict]:
    """Judge claims on a sweep's tables: the claims of its header, or those in `names`.

    Raises:
        SweeperError: a claim is unknown, or the sweep names none.
        QueryError: the tables cannot be read.
    """
    chosen = list(names) if names else named_claims(results)
    unknown = [name for name in chosen if name not in CLAIMS]
    if unknown:
        raise SweeperError(f"unknown claim {unknown[0]!r}", hint(unknown[0], CLAIMS))
    if not chosen:
        raise SweeperError(
            f"the search space of {results.name!r} does not name a claim", f"give one with --claim: {', '.join(CLAIMS)}"
        )
    wanted = {CLAIMS[name].table for name in chosen}
    # Mean focal weights read every stored logit, so they are computed only for a claim that needs them.
    rows = {"final": claim_rows(results, weights=any(CLAIMS[name].weights for name in chosen))}
    if "epochs" in wanted:
        rows["epochs"] = trajectory_rows(results)
    if "blocks" in wanted:
        rows["blocks"] = layer_rows(results)
    return [CLAIMS[name].judge(rows[CLAIMS[name].table]) for name in chosen]


def claim_rows(results: Results, *, weights: bool = True) -> Sequence[Row]:
    """Return the rows of `final` with the objective of each post-hoc method (`posthoc_<label>_fitted_by`).

    With `weights`, focal rows also have their `mean_focal_weight` on validation data.
    """
    rows: list[dict[str, Value]] = results.table("final").to_pylist()
    fitted = _fitting_objectives(results)
    weight_of = _mean_focal_weights(results) if weights and "config_loss_gamma" in results.columns("final") else {}
    for row in rows:
        # Cross-entropy is focal loss with γ = 0, whose weights are all 1.
        plain = 1.0 if row["config_loss_name"] == "cross_entropy" else None
        row["mean_focal_weight"] = weight_of.get((row["trial"], row["replicate"]), plain)
        row.update(fitted)
    return rows


def layer_rows(results: Results) -> Sequence[Row]:
    """Return the rows of `final`, each with a column for every layer's trace of cross-entropy's Hessian."""
    traces: dict[tuple[Value, ...], dict[str, Value]] = {}
    for row in results.rows("SELECT * FROM blocks WHERE loss = 'cross_entropy'"):
        # With the epoch: only the layers of the last evaluation belong to a row of `final`.
        key = row["trial"], row["replicate"], row["epoch"]
        traces.setdefault(key, {})[f"{LAYER_TRACE}{row['block']}"] = row["trace"]
    rows: list[dict[str, Value]] = results.table("final").to_pylist()
    return [{**row, **traces.get((row["trial"], row["replicate"], row["epoch"]), {})} for row in rows]


def trajectory_rows(results: Results) -> Sequence[Row]:
    """Return the rows of `epochs` with their configuration; `stage` is `end` for replicates trained to the end."""
    return results.rows(
        "SELECT epochs.*, COLUMNS('^config_'), if(status = 'completed', 'end', 'rung') AS stage, '' AS split\n"
        "FROM epochs JOIN trials USING (trial, replicate)"
    )


def _fitting_objectives(results: Results) -> dict[str, Value]:
    """Return a column for each post-hoc method of the sweep: the metric by which it was fitted."""
    # A grid search by NLL and an optimiser of NLL have the same objective; claims compare only methods that share it.
    columns: dict[str, Value] = {}
    for method in results.posthoc:
        objective = "nll" if method.get("objective") == "nll_on_grid" else method.get("objective")
        if objective == "ece" and method.get("scheme") == "equal_mass":
            objective = "ada_ece"
        columns[f"posthoc_{entry_label(method)}_fitted_by"] = objective
    return columns


def _mean_focal_weights(results: Results) -> dict[tuple[Value, Value], Value]:
    trials = [text_of(row, "trial") for row in results.rows(f"SELECT DISTINCT trial FROM ({FOCAL_SQL})")]
    return {(row["trial"], row["replicate"]): row["weight"] for row in results.rows(WEIGHTS_SQL, trials=trials)}


def verdict_lines(verdicts: Sequence[Verdict], *, rehearsal: bool = False) -> list[str]:
    """Return each verdict as one paragraph; verdicts of a rehearsal are marked."""
    mark = "REHEARSAL, no evidence for or against the claim: " if rehearsal else ""
    return [f"{mark}{CLAIMS[v.claim].statement} {v.verdict.capitalize()}: {v.sentence}." for v in verdicts]


def claims_table() -> Table:
    """Return a table of all claims with paper, statement and rule, for a terminal."""
    table = Table("claim", "paper", "statement", "rule", box=None, pad_edge=False)
    for claim in CLAIMS.values():
        table.add_row(claim.name, claim.paper, claim.statement, claim.rule)
    return table
