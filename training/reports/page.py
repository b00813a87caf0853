"""A self-contained HTML page without scripts: headings, facts, tables, figures and films."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from rlds2reverb.learners.figure_style import render_svg
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.sealed_files import replace_text
from rlds2reverb.system.text import escape_controls
from rlds2reverb.types.locations import expand_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rlds2reverb.envs.film import Film

#: The page may show its own images and films, but cannot run scripts or load anything.
_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; base-uri 'none'"


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
        path = expand_path(path, "path")
        with full_disk_as_error(path.parent):
            replace_text(path, self.html)
        return path

    def __repr__(self) -> str:
        return f"Report({self.title!r}, {len(self.html):,} bytes)"

    def _repr_html_(self) -> str:
        page = html.escape(self.html, quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 50rem; border: 0"></iframe>'


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
        self._is_in_grid = False

    def add_section(self, heading: str, text: str = "") -> None:
        """Starts a section with a heading and, optionally, a paragraph."""
        self._headings.append(heading)
        self._add(f'<h2 id="section-{len(self._headings)}">{escape(heading)}</h2>')
        if text:
            self.add_text(text)

    def add_text(self, text: str) -> None:
        """Adds a paragraph."""
        self._add(f"<p>{escape(text)}</p>")

    def add_facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Adds a list of names and values."""
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
        self._add(f'<div class="panel"><dl>{rows}</dl></div>')

    def add_table(self, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Adds a table."""
        head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self._add(f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')

    def add_findings(self, findings: Sequence[tuple[str, str]], otherwise: str = "") -> None:
        """Adds a list of (kind, sentence), where a kind is 'error', 'warning', 'note' or the like.

        Args:
          findings: the list.
          otherwise: paragraph in place of an empty list.
        """
        if not findings:
            self.add_text(otherwise)
            return
        items = (
            f'<li class="{"error" if kind == "error" else "note"}"><b>{escape(kind)}</b>{escape(sentence)}</li>'
            for kind, sentence in findings
        )
        self._add(f'<ul class="findings">{"".join(items)}</ul>')

    def add_figure(self, heading: str, figure: Figure, *, caption: str = "", is_wide: bool = False) -> None:
        """Adds a figure; consecutive figures share a grid.

        Args:
          heading: heading of the figure.
          figure: figure, which becomes an image.
          caption: explanation below the figure.
          is_wide: whether the figure takes the full width.
        """
        image = base64.b64encode(render_svg(figure)).decode()
        plot = f'<img class="plot" alt="{escape(heading)}" src="data:image/svg+xml;base64,{image}">'
        self._add_to_grid(heading, plot, caption, attributes=" class=wide" if is_wide else "")

    def add_film(self, heading: str, film: Film, *, caption: str) -> None:
        """Adds a film to the grid."""
        self._add_to_grid(heading, film.to_html(), caption)

    def build(self, path: str | Path | None = None) -> Report:
        """Returns the report, and writes it to a file if there is a path."""
        links = "".join(
            f'<a href="#section-{number}">{escape(heading)}</a>' for number, heading in enumerate(self._headings, 1)
        )
        assets = resources.files(__package__) / "assets"
        document = (
            (assets / "report.html")
            .read_text(encoding="utf-8")
            .format(
                policy=_SECURITY_POLICY,
                title=escape(self._title),
                subtitle=escape(self._subtitle),
                style=(assets / "report.css").read_text(encoding="utf-8"),
                links=links,
                body="\n".join([*self._parts, *(["</div>"] if self._is_in_grid else [])]),
            )
        )
        report = Report(self._title, document)
        if path is not None:
            report.write(path)
        return report

    def _add_to_grid(self, heading: str, content: str, caption: str, *, attributes: str = "") -> None:
        below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        self._add(f"<figure{attributes}><h3>{escape(heading)}</h3>{content}{below}</figure>", is_in_grid=True)

    def _add(self, part: str, *, is_in_grid: bool = False) -> None:
        """Adds a part, after the beginning or the end of a grid if it is not where the part before it is."""
        if is_in_grid != self._is_in_grid:
            self._parts.append('<div class="grid">' if is_in_grid else "</div>")
            self._is_in_grid = is_in_grid
        self._parts.append(part)


def escape(text: str) -> str:
    """Returns a text for HTML, with control characters made visible."""
    return html.escape(escape_controls(text), quote=True)
