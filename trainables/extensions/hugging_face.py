"""Hugging Face transformers, where it is installed, and the local folders that it reads: nothing is ever fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainables.extensions.torchvision_compat import register_missing_operators

REMEDY = "pip install 'calibration-sweeper[transformers]'"

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""How folders are read: unless code is refused, transformers asks at the terminal whether to run a folder's own."""


def required_library() -> Any:
    """Return `transformers`, which says nothing from now on. Raises ValueError where it is not installed."""
    register_missing_operators()
    try:
        import transformers
    except ImportError as error:
        raise ValueError(f"the package transformers is not installed; {REMEDY}") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def existing_folder(folder: str, *needed: str) -> Path:
    """Return a folder with one of the files `needed`. Raises ValueError with the command that would fetch it."""
    place = Path(folder).expanduser()
    if any((place / name).is_file() for name in needed):
        return place
    model = "/".join(place.parts[-2:]) if not place.is_absolute() and len(place.parts) > 1 else "ORGANISATION/MODEL"
    raise ValueError(f"there is no {needed[0]} in {place}; fetch it: hf download {model} --local-dir {place}")
