"""Makes docs/static/front_film.gif: episodes of a dataset, and the policy trained from it, from the same starts.

    python docs/front_film.py

Both films are recorded by `record_film`; the data's is a policy that repeats the recorded actions.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import gymnasium
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageSequence

from rlds2reverb import load, train
from rlds2reverb.envs import record_film

ROOT = Path(__file__).parent.parent
DATASET = ROOT / "tests/data/d4rl/pendulum_mixed-v2.hdf5"
#: Quantiles of the returns of the episodes that are shown.
QUANTILES = (0.25, 0.4, 0.55, 0.7)
STEPS, MS_PER_STEP = 120, 50
EDGE, GAP, HEADING = 140, 4, 28  # in pixels


class StartAt(gymnasium.Wrapper):
    """Starts Pendulum-v1 at the angle and velocity of an observation [cos, sin, velocity]."""

    def __init__(self, env: gymnasium.Env, observation: np.ndarray) -> None:
        super().__init__(env)
        self._observation = observation

    def reset(self, **kwargs):
        """Resets the environment, and then sets its state."""
        _, info = self.env.reset(**kwargs)
        cosine, sine, velocity = map(float, self._observation)
        self.unwrapped.state = np.array([np.arctan2(sine, cosine), velocity])
        return self._observation, info


def film(policy, observation: np.ndarray, folder: Path) -> list[Image.Image]:
    """Returns the images of one episode."""

    def make(**kwargs):
        return StartAt(gymnasium.make("Pendulum-v1", **kwargs), observation)

    path = folder / "film.gif"
    record_film(lambda: make(render_mode="rgb_array"), policy, path, max_episode_steps=STEPS)
    images = []
    with Image.open(path) as frames:
        for frame in ImageSequence.Iterator(frames):  # Equal images are one frame with a longer duration.
            image = frame.convert("RGB")
            margin = image.width // 5
            image = image.crop((margin, margin, image.width - margin, image.height - margin)).resize((EDGE, EDGE))
            images += [image] * round(frame.info["duration"] / MS_PER_STEP)
    return images + images[-1:] * (STEPS + 1 - len(images))


def main() -> None:
    """Trains the policy, and writes the film."""
    episodes = sorted(load(DATASET), key=lambda episode: episode.steps["reward"].sum())
    shown = [episodes[int(quantile * len(episodes))].steps for quantile in QUANTILES]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = train(DATASET, "bc", folder / "run", top_percent=50, steps=2000)
        films = []
        for steps in shown:
            actions = iter(steps["action"])
            films.append(
                film(lambda observation, actions=actions: next(actions)[None], steps["observation"][0], folder)
            )
        films += [film(run.policy, steps["observation"][0], folder) for steps in shown]
    mean = np.mean([episode.steps["reward"].sum() for episode in episodes])
    headings = (f"the data: mean return {mean:.0f}", f"after 2,000 updates: mean return {run.last_return:.0f}")
    side = 2 * EDGE + GAP
    font = ImageFont.load_default(14)
    frames = []
    for images in zip(*films, strict=True):
        frame = Image.new("RGB", (2 * side + 4 * GAP, side + HEADING), "white")
        draw = ImageDraw.Draw(frame)
        draw.line((side + 2 * GAP, 0, side + 2 * GAP, frame.height), "silver")
        for half, heading in enumerate(headings):
            left = half * (side + 4 * GAP)
            draw.text((left + side / 2, HEADING / 2), heading, "black", font, anchor="mm")
            for number, image in enumerate(images[4 * half : 4 * half + 4]):
                place = (left + number % 2 * (EDGE + GAP), HEADING + number // 2 * (EDGE + GAP))
                frame.paste(image, place)
        frames.append(frame.quantize(48))
    path = ROOT / "docs/static/front_film.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=MS_PER_STEP, loop=0, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {frames[0].width} x {frames[0].height} pixels")


if __name__ == "__main__":
    main()
