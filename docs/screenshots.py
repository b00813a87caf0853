"""Makes the pictures of reports in the docs: parts of real pages, in light and dark, of which an SVG file shows one.

    python docs/screenshots.py

Requires Chromium. Trains two runs of Hopper, which takes about two minutes.
"""

from __future__ import annotations

import base64
import io
import re
import subprocess
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
from PIL import Image

from rlds2reverb import load, report_runs, report_source, train

DOCS = Path(__file__).parent
DATA = DOCS.parent / "tests/data/d4rl"
WIDTH, MAX_HEIGHT, SCALE, MARGIN = 900, 3000, 1.25, 12
SVG = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" \
viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<style>.dark{{display:none}}@media(prefers-color-scheme:dark){{.dark{{display:inline}}.light{{display:none}}}}</style>
{images}
</svg>
"""


def add_images(episode):
    """Returns an episode of Pendulum-v1 whose observations contain images as well."""
    environment = gymnasium.make("Pendulum-v1", render_mode="rgb_array")
    environment.reset()
    images = []
    for cosine, sine, velocity in episode.steps["observation"]:
        environment.unwrapped.state = np.array([np.arctan2(sine, cosine), velocity])
        images.append(Image.fromarray(environment.render()).crop((100, 100, 400, 400)).resize((64, 64)))
    states = {"image": np.stack(list(map(np.asarray, images))), "state": episode.steps["observation"]}
    return {
        **{"observations": states, "actions": episode.steps["action"][:-1], "rewards": episode.steps["reward"][:-1]},
        "terminated": False,
    }


def take_screenshot(page: str, scheme: str, folder: Path) -> Image.Image:
    """Returns the picture of a page, cut below its last element."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    subprocess.run(
        [
            *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
            *(f"--force-device-scale-factor={SCALE}", f"--window-size={WIDTH},{MAX_HEIGHT}"),
            *(f"--screenshot={folder / 'page.png'}", (folder / "page.html").as_uri()),
        ],
        check=True,
        capture_output=True,
    )
    picture = Image.open(folder / "page.png").convert("RGB")
    rows = np.flatnonzero((np.asarray(picture) != np.asarray(picture)[-1, 0]).any(axis=(1, 2)))
    return picture.crop((0, 0, picture.width, int(rows[-1] + MARGIN * SCALE)))


def save_part(report: Path, first: str, last: str, path: Path) -> None:
    """Writes the part of a report from a heading to the end of the figure whose title begins with `last`."""
    page = report.read_text(encoding="utf-8")
    head = page[: page.index("<body")]
    begin = re.search(f"<h2[^>]*>{first}", page).start()
    end = page.index("</figure>", page.index(last, begin))
    style = "<style>h2:first-of-type { margin-top: 0.4rem; }</style>"
    part = f"{head}<body>{style}{page[begin:end]}</figure></body></html>"
    images = []
    for scheme in ("light", "dark"):
        picture, stream = take_screenshot(part, scheme, report.parent), io.BytesIO()
        picture.quantize(64, dither=Image.Dither.NONE).save(stream, "png", optimize=True)
        data = base64.b64encode(stream.getvalue()).decode()
        images.append(f'<image class="{scheme}" width="100%" height="100%" xlink:href="data:image/png;base64,{data}"/>')
    width, height = round(picture.width / SCALE), round(picture.height / SCALE)
    path.write_text(SVG.format(width=width, height=height, images="\n".join(images)), encoding="utf-8")
    print(path.name, f"{path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Makes both pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        episodes = sorted(load(DATA / "pendulum_mixed-v2.hdf5"), key=lambda episode: episode.steps["reward"].sum())
        shown = np.linspace(0, len(episodes) - 1, 8).astype(int)
        report_source([add_images(episodes[number]) for number in shown], folder / "dataset.html")
        save_part(folder / "dataset.html", "Rewards, actions", "best return", DOCS / "report_dataset.svg")
        options = {"hyperparameters": {"hidden_sizes": (64, 64)}, "jit_compile": True, "log_every": 250}
        for algo in ("td3", "td3_bc"):
            train(DATA / "hopper_medium-v2.hdf5", algo, folder / algo, steps=5000, eval_every=1000, **options)
        report_runs([folder / "td3", folder / "td3_bc"], folder / "runs.html")
        save_part(folder / "runs.html", "Q-values", ">td3_bc", DOCS / "report_q_values.svg")


if __name__ == "__main__":
    main()
