"""The shipped search space files, one per question, and the numbers that papers print.

The package itself imports only the standard library; the examples import the packages that they extend.

>>> from search_spaces import locate, packaged_files
>>> packaged_files()["quickstart"].name
'quickstart.yaml'
>>> locate("examples/own_loop").name
'own_loop.yaml'

A file's `header` gives `question`, `source`, `expected`, `cost` and `command` in words, and for a paper's experiments

    paper: mukhoti                      # curvature, properness, mukhoti, posterior or selective
    tables: [mukhoti-1, mukhoti-4]      # the published tables and figures whose cells this sweep can fill
    claims: [focal_temperature_beats_temperature]   # `sweeper claims NAME` judges them

`rehearsal` holds the changes that `--rehearse` makes, path: value as `--set` takes them:

    rehearsal: {dataset: digits_stand_in, scheduler.max_epochs: 4, space.loss.grid[1].gamma: {grid: [1, 3]}}

Each value replaces what the file has at its path. Options `--set` of the command line are applied afterwards.

Published numbers are in `published/<paper>_table_<number>.csv` or `published/<paper>_figure_<number>.csv`, one row per
printed number, read by `search_spaces.papers.published_numbers`:

* `table`: the name that headers use, e.g. `mukhoti-1`;
* `dataset`, `architecture`, `loss`: names in our registries; `options`: hyperparameters that distinguish rows of one
  loss, `gamma=3` or `coverage=0.5;nu=0.1`; `posthoc`: a method's name, empty for the network's own probabilities;
* `split`: `val` or `test`; `metric`: a column of the results, or `error` or `auroc`;
* `value`: in our unit (shares, not per cent); `printed`: the characters in the paper; `spread`: the printed standard
  deviation in our unit, `n`: over how many runs, both empty where the paper gives none;
* `source`: table or figure, row and column, as the paper calls them.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def packaged_files() -> dict[str, Path]:
    """Return the shipped search space files by name: `{"quickstart": …/quickstart.yaml, "tutorials/…": …}`."""
    named = {path.stem: path for path in (*FOLDER.glob("*.yaml"), *FOLDER.glob("papers/*.yaml"))}
    # Two files of one name in different folders would hide each other, so tutorials keep their folder.
    named |= {f"tutorials/{path.stem}": path for path in FOLDER.glob("tutorials/*.yaml")}
    return dict(sorted(named.items()))


def locate(path: str | Path) -> Path:
    """Return `path` if it exists, else the shipped file with that name, else `path`.

    `examples/NAME` is a file in `search_spaces/examples`, next to the components that it names.
    """
    given, name = Path(path), str(path).removesuffix(".yaml")
    # An existing file takes precedence over a shipped one: a user's quickstart.yaml is not shadowed.
    if _exists(given):
        return given
    example = FOLDER / f"{name}.yaml"
    return example if given.parent == Path("examples") and example.is_file() else packaged_files().get(name, given)


def _exists(path: Path) -> bool:
    """Return whether the file exists; names that are too long or contain a NUL do not exist."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
