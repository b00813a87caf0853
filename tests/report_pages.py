"""The content of report pages: the figures and viewers that their scripts draw, with figures by heading."""

import base64
import gzip
import html
import json
import re


def read_payload(page: str, name: str) -> bytes:
    (text,) = re.findall(rf'<script type="application/octet-stream" id="{name}">([^<]*)</script>', page)
    return gzip.decompress(base64.b64decode(text))


def read_figures(page: str) -> dict[str, dict]:
    """Returns the figures by their headings; of several with the same heading the first one."""
    figures = {each["id"]: each for each in json.loads(read_payload(page, "content"))["figures"]}
    headings = re.findall(r'<h3>([^<]*)</h3><div class="plot" id="([^"]*)"', page)
    return {html.unescape(heading): figures[name] for heading, name in reversed(headings)}


def read_viewer(page: str) -> list[dict]:
    """Returns the episodes of the viewer."""
    (viewer,) = json.loads(read_payload(page, "content"))["viewers"]
    return viewer["episodes"]


def read_findings(page: str) -> list[tuple[str, str]]:
    """Returns the findings as (kind, sentence)."""
    found = re.findall(r'<li class="[a-z]*"><b>([^<]*)</b>([^<]*)</li>', page)
    return [(kind, html.unescape(sentence)) for kind, sentence in found]


def paint(value):
    """Replaces the names of colours, as the page does, so that Plotly can validate a figure."""
    if isinstance(value, str) and value.startswith("@"):
        return "Viridis" if value == "@scale" else "#000000"
    if isinstance(value, list):
        return [paint(each) for each in value]
    return {key: paint(part) for key, part in value.items()} if isinstance(value, dict) else value
