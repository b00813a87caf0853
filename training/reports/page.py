"""A self-contained HTML page: headings, facts, tables, figures, an episode viewer, and the scripts that draw them."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb._full_disk import full_disk_as_error
from rlds2reverb._sealed_files import replace_text

if TYPE_CHECKING:
    from rlds2reverb.envs.film import Film

INSTALL = "run pip install '.[report]' in the checkout, or make dev after make install"
#: Number of significant digits of the values in figures.
_NUM_DIGITS = 5
#: The page may run its own scripts and show its own images, but cannot load anything.
_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "media-src data:; base-uri 'none'"
)


@dataclass(frozen=True)
class Report:
    """A report, which notebooks display.

    Attributes:
      title: title of the page.
      html: the page, a complete HTML document.
    """

    title: str
    html: str

    def write(self, path: str | Path) -> Path:
        """Writes the page atomically, and returns its path.

        Raises:
          StorageFullError: If the disk is full; the file is left unchanged.
        """
        path = Path(path)
        with full_disk_as_error(path.parent):
            replace_text(path, self.html)
        return path

    def __repr__(self) -> str:
        return f"Report({self.title!r}, {len(self.html):,} bytes)"

    def _repr_html_(self) -> str:
        page = html.escape(self.html, quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 50rem; border: 0"></iframe>'


def require_plotly() -> None:
    """Raises `ImportError` with advice if the library of the figures is not installed."""
    _compress_plotly()


class Page:
    """A page under construction. All texts are escaped, because they may come from files of unknown origin."""

    def __init__(self, title: str, subtitle: str):
        """Starts a page.

        Args:
          title: name of what the report is about.
          subtitle: sentence below the title.
        """
        self._title, self._subtitle = title, subtitle
        self._parts: list[str] = []
        self._headings: list[str] = []
        self._figures: list[dict[str, Any]] = []
        self._viewers: list[dict[str, Any]] = []
        self._is_in_grid = False

    def add_section(self, heading: str, text: str = "") -> None:
        """Starts a section with a heading and, optionally, a paragraph."""
        self._close_grid()
        self._headings.append(heading)
        self._parts.append(f'<h2 id="section-{len(self._headings)}">{escape(heading)}</h2>')
        if text:
            self.add_text(text)

    def add_text(self, text: str) -> None:
        """Adds a paragraph."""
        self._close_grid()
        self._parts.append(f"<p>{escape(text)}</p>")

    def add_facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Adds a list of names and values."""
        self._close_grid()
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
        self._parts.append(f'<div class="panel"><dl>{rows}</dl></div>')

    def add_table(self, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Adds a table."""
        self._close_grid()
        head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self._parts.append(
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def add_findings(self, findings: Iterable[tuple[str, str]]) -> None:
        """Adds a list of (kind, sentence), where a kind is 'problem', 'warning', 'note' or the like."""
        self._close_grid()
        items = (
            f'<li class="{"problem" if kind == "problem" else "note"}"><b>{escape(kind)}</b>{escape(sentence)}</li>'
            for kind, sentence in findings
        )
        self._parts.append(f'<ul class="findings">{"".join(items)}</ul>')

    def add_figure(
        self,
        heading: str,
        data: Sequence[Mapping[str, Any]],
        layout: Mapping[str, Any],
        *,
        caption: str = "",
        height: int = 300,
        is_wide: bool = False,
    ) -> None:
        """Adds a figure; consecutive figures share a grid.

        Args:
          heading: heading of the figure.
          data: Plotly's traces; see `figures`.
          layout: Plotly's layout, without colours and sizes.
          caption: explanation below the figure.
          height: height in pixels.
          is_wide: whether the figure takes the full width.
        """
        self._open_grid()
        name = f"figure-{len(self._figures) + 1}"
        traces = [_mark_single_point(trace) for trace in data]
        self._figures.append({"id": name, "data": traces, "layout": {"height": height, **layout}})
        self._parts.append(
            f"<figure{' class=wide' if is_wide else ''}><h3>{escape(heading)}</h3>"
            f'<div class="plot" id="{name}" role="img" aria-label="{escape(heading)}" style="height: {height}px"></div>'
            + (f"<figcaption>{escape(caption)}</figcaption>" if caption else "")
            + "</figure>"
        )

    def add_viewer(self, episodes: Sequence[Mapping[str, Any]]) -> None:
        """Adds a viewer of episodes; see `episode_viewer.make_viewer_episode`."""
        self._close_grid()
        name = f"viewer-{len(self._viewers) + 1}"
        self._viewers.append({"id": name, "episodes": list(episodes)})
        self._parts.append(_VIEWER.replace("NAME", name))

    def add_film(self, heading: str, film: Film, *, caption: str) -> None:
        """Adds a film to the grid."""
        self._open_grid()
        self._parts.append(
            f"<figure><h3>{escape(heading)}</h3>{film.to_html()}<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def build(self) -> Report:
        """Returns the report.

        Raises:
          ImportError: If the library of the figures is not installed.
        """
        self._close_grid()
        links = "".join(
            f'<a href="#section-{number}">{escape(heading)}</a>' for number, heading in enumerate(self._headings, 1)
        )
        content = json.dumps(_to_json({"figures": self._figures, "viewers": self._viewers}), allow_nan=False)
        assets = resources.files(__package__) / "assets"
        document = _DOCUMENT.format(
            policy=_SECURITY_POLICY,
            title=escape(self._title),
            subtitle=escape(self._subtitle),
            style=(assets / "report.css").read_text(encoding="utf-8"),
            links=links,
            body="\n".join(self._parts),
            plotly=_compress_plotly(),
            content=_compress(content.encode()),
            script=(assets / "report.js").read_text(encoding="utf-8"),
        )
        return Report(self._title, document)

    def _open_grid(self) -> None:
        if not self._is_in_grid:
            self._parts.append('<div class="grid">')
            self._is_in_grid = True

    def _close_grid(self) -> None:
        if self._is_in_grid:
            self._parts.append("</div>")
            self._is_in_grid = False


def _mark_single_point(trace: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a trace whose only point is visible: a line needs two."""
    is_line = trace.get("mode") == "lines" and "fill" not in trace
    is_single = is_line and np.isfinite(np.asarray(trace["y"], np.float64)).sum() == 1
    return {**trace, "mode": "lines+markers"} if is_single else trace


_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="rlds2reverb">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{title}</h1><p class="muted">{subtitle}</p><nav>{links}</nav></header>
<main>
{body}
</main>
<noscript><p>The figures require JavaScript.</p></noscript>
<script type="application/octet-stream" id="plotly">{plotly}</script>
<script type="application/octet-stream" id="content">{content}</script>
<script>
{script}</script>
</body>
</html>
"""

_VIEWER = """<div class="panel" id="NAME">
<div class="controls">
<label>episode <select data-part="episode"></select></label>
<button type="button" data-part="previous" aria-label="previous episode">◀</button>
<button type="button" data-part="next" aria-label="next episode">▶</button>
</div>
<p class="muted" data-part="facts"></p>
<div class="controls">
<button type="button" data-part="play">▶ play</button>
<input type="range" min="0" value="0" step="1" data-part="time" aria-label="step of the episode">
</div>
<output data-part="readout"></output>
<dl data-part="texts"></dl>
<div class="controls" data-part="frames"></div>
<div class="plot" data-part="plot"></div>
</div>"""


def escape(text: str) -> str:
    """Returns a text for HTML, with control characters made visible."""
    return html.escape(show_controls(text), quote=True)


def escape_label(text: str) -> str:
    """Returns a text for labels in figures, in which Plotly interprets some tags."""
    return html.escape(show_controls(text), quote=False)


def show_controls(text: str) -> str:
    """Returns a text with control characters made visible."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _read_plotly() -> bytes:
    try:
        return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except ModuleNotFoundError as error:
        raise ImportError(f"reports require plotly ({error}); {INSTALL}") from error


@cache
def _compress_plotly() -> str:
    return _compress(_read_plotly())


def _compress(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _to_json(value: Any) -> Any:
    """Returns JSON values, with arrays as lists of rounded numbers, and numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {key: _to_json(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return _to_json(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_to_json(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        rounded = float(f"{value:.{_NUM_DIGITS}g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return value
