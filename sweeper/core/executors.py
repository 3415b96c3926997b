"""The names of executors."""

from __future__ import annotations

from typing import Literal

Executor = Literal["auto", "local", "ray"]
"""`local`: forked processes of this machine; `ray`: a cluster, or a Ray started here; `auto`: `local` where no cluster
is named and trials take no GPUs."""
