"""Sphinx's settings for the site (`make docs`): nothing is fetched, and every warning is an error."""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
# Tutorials train sweeps: in folders that are removed after the build, and never into the caller's MLflow store.
SCRATCH = tempfile.TemporaryDirectory(prefix="sweeper-docs-", ignore_cleanup_errors=True)
os.environ["TMPDIR"] = SCRATCH.name
for variable in ("MLFLOW_TRACKING_URI", "SWEEPER_OUTPUT"):
    os.environ.pop(variable, None)

from pygments.lexers.special import TextLexer  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from writing import pages  # noqa: E402

project = "Calibration sweeper"
author = "the calibration sweeper's authors"
release = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]["version"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
exclude_patterns = ["build", "writing", "paper", "Thumbs.db"]
GALLERY = HERE.parent / "build/gallery/pages"  # made by `make gallery`; the site can be built without it
html_extra_path = [str(GALLERY)] if GALLERY.is_dir() else []
html_theme = "furo"
html_title = f"Calibration sweeper {release}"
html_show_sphinx = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
default_role = "code"


def setup(app: Sphinx) -> None:
    """Write the generated pages before Sphinx looks for pages."""
    # GitHub draws Mermaid; here its text is shown, because drawing needs a script from another site.
    app.add_lexer("mermaid", TextLexer)
    app.connect("builder-inited", lambda _app: pages.write_all(HERE / "reference"))
    app.connect("source-read", pages.relink)
