"""The documentation site: `make docs` builds it in build/site, and treats warnings as errors.

The notebooks are rendered with the outputs that are stored in git; `make notebooks` runs them.
"""

import json
import sys
from pathlib import Path

import rlds2reverb

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from docstrings import convert_command_help, convert_docstring  # noqa: E402
from reference_pages import write_reference_pages  # noqa: E402

project = "rlds2reverb"
author = "The authors of rlds2reverb"
copyright = "2026, the authors of rlds2reverb; Apache-2.0"
version = release = rlds2reverb.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["results/*", "**/README.md"]
suppress_warnings = ["config.cache"]

# Markdown.
smartquotes = False  # They would turn -- into a dash.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "off"

# Docstrings.
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Appearance.
html_theme = "furo"
html_title = "rlds2reverb"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": "https://github.com/rlds2reverb/rlds2reverb/",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_copy_source = False
html_show_sourcelink = False


def copy_notebooks() -> None:
    """Copies the notebooks into the source directory, because Sphinx reads nothing outside of it."""
    for path in (HERE / "notebooks").glob("*.ipynb"):
        path.unlink()
    for path in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["metadata"]["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}  # Knows `!command`.
        (HERE / "notebooks" / path.name).write_text(json.dumps(notebook), encoding="utf-8")


copy_notebooks()
write_reference_pages(HERE / "reference")


def setup(app):
    """Connects the conversion of docstrings, before napoleon's, which has the default priority of 500."""
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)
    app.connect("sphinx-click-process-description", convert_command_help)
