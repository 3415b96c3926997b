"""The data set of a run, as MLflow records what a run was trained on: name, digest, source and sizes of the splits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTEXT_TAG, CONTEXT = "mlflow.data.context", "training"
"""MLflow's own tag of an input; the same data set's held-out splits are in the profile."""

DIGEST_CHARACTERS = 16
"""MLflow's tables take up to 36."""


@dataclass(frozen=True)
class UsedDataset:
    """A data set by MLflow's words for its parts; `source` and `profile` are JSON."""

    name: str
    digest: str
    source_type: str
    source: str
    profile: str


def used_dataset(named: Mapping[str, Any], recorded: Mapping[str, Any]) -> UsedDataset:
    """Describe the data set of a configuration.

    Args:
        named: its name and options.
        recorded: what the manifest says of the sweep's own data set: name, options, `samples`, `classes`, `split_hash`.
    """
    options = {key: value for key, value in named.items() if key != "name"}
    own = all(recorded.get(key) == value for key, value in named.items())
    facts = {key: recorded[key] for key in ("samples", "classes", "split_hash") if own and key in recorded}
    whole = json.dumps([dict(named), facts.get("split_hash")], sort_keys=True, default=str)
    sizes = facts.pop("samples", {})
    profile = {**({"num_rows": sum(sizes.values())} if sizes else {}), **sizes, **facts, **options}
    return UsedDataset(
        str(named["name"]),
        hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_CHARACTERS],
        *_source(named),
        json.dumps(profile, default=str),
    )


def _source(named: Mapping[str, Any]) -> tuple[str, str]:
    """Return the source's type and JSON: the folder of the data, else the code that loads them."""
    folder = named.get("folder")
    if isinstance(folder, str):
        return "local", json.dumps({"uri": Path(folder).expanduser().absolute().as_uri()})
    loader = str(named["name"]) if ":" in str(named["name"]) else f"trainables.datasets: {named['name']}"
    return "code", json.dumps({"tags": {"mlflow.source.type": "LOCAL", "mlflow.source.name": loader}})
