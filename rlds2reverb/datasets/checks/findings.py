"""Findings, the severity and advice of each check, and counts of the places where a check finds something."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlds2reverb.errors import Message

from .transition_blocks import Block

#: In order of severity. An error makes a dataset unusable, a warning is probably a mistake in the data,
#: and an info is a property that the user should know.
SEVERITIES = ("info", "warning", "error")

#: Severity, meaning and advice of each check.
CHECKS = {
    "non-finite": ("error", "NaN or Inf", "remove or repair these steps"),
    "huge-values": ("warning", "a few values above a million", "replace placeholders of missing values"),
    "constant-field": ("warning", "a field never changes", "drop the field, or repair its recording"),
    "zero-variance-dimension": ("warning", "elements of a vector never change", "remove them, or repair the sensor"),
    "zero-observations": ("warning", "all numbers of a few observations are 0", "remove these steps, or fill them"),
    "frozen-field": ("warning", "a field is constant in a few episodes only", "remove these episodes"),
    "observation-jump": ("warning", "a change far above all others", "split the episode there, or repair the values"),
    "mixed-scales": ("warning", "a few episodes are in other units", "convert all episodes to the same units"),
    "duplicate-frames": ("warning", "a step repeats the one before it", "remove the repeated steps"),
    "actions-out-of-bounds": ("warning", "actions outside of the bounds", "clip or rescale the actions"),
    "actions-at-bounds": ("warning", "actions are nearly always at a bound", "check the scale of the actions"),
    "repeated-actions": ("warning", "the same action many times in a row", "remove idle steps"),
    "black-images": ("warning", "black images", "remove these steps, or decode the images again"),
    "uniform-images": ("warning", "images of a single colour", "remove these steps, or decode the images again"),
    "frozen-camera": ("warning", "images stand still while the state changes", "remove these steps"),
    "float-images": ("info", "float images from 0 to 255", "divide them by 255 if the model expects 0 to 1"),
    "constant-reward": ("info", "all rewards are equal", "use cloning, or relabel the rewards"),
    "sparse-final-reward": ("info", "only last transitions have a reward", "expect slow value learning"),
    "reward-in-last-step": (
        "warning",
        "the only reward of an episode is in a step without a transition",
        Message("shift the rewards by one step, or read last rows as transitions", last_step="transition"),
    ),
    "end-disagrees-with-reward": (
        "warning",
        "a few episodes end differently than others with the same last reward",
        "correct is_terminal or the reward of these episodes",
    ),
    "discount-disagrees-with-end": (
        "warning",
        "discount 0 without a terminal end, or 1 at a terminal end",
        "set discounts to 0 at terminal ends and 1 elsewhere",
    ),
    "reset-steps": ("warning", "first steps that are resets", Message("leave them out", autoreset="next_step")),
    "reset-observations": ("warning", "final observations of resets", Message("drop them", autoreset="same_step")),
    "contradiction": ("warning", "statements that the rows contradict", "convert or download the dataset again"),
    "stale-index": ("warning", "rows in a different file than stated", "update the metadata, or convert it again"),
    "video-span": ("warning", "frames of a video that no row uses", "compare the images with the states there"),
    "video-drift": ("info", "frames at other times than the rows", "nothing, unless the times are meant to be equal"),
    "single-step-episodes": ("warning", "episodes without a transition", "remove them, or join them to others"),
    "duplicate-episodes": ("warning", "an episode equals an earlier one", "remove the copies"),
    "episode-longer-than-limit": ("warning", "more steps than the time limit", "check how episodes were split"),
    "time-limit-marked-terminal": (
        "warning",
        "episodes that reach the time limit are marked terminal",
        "mark them as truncated, so that learners bootstrap",
    ),
    "timestamps-not-increasing": ("warning", "a time is not after the one before it", "sort the steps"),
    "dropped-frames": ("warning", "a gap between two times", "split the episode there, or resample it"),
    "timestamp-drift": ("warning", "times depart from a constant rate", "resample the episode"),
    "contradicting-rate": ("warning", "times at another rate than stated", "correct fps in the metadata"),
    "mixed-rates": ("warning", "a few episodes at another rate", "resample them, or train on them separately"),
    "missing-text": ("warning", "empty strings", "fill in the text, or drop the field"),
    "shuffled-rows": ("warning", "rows in another order than their numbers", "sort the rows, or convert it again"),
    "inverted-gripper": ("warning", "a few episodes open where others close", "invert the gripper in these episodes"),
    "mixed-conventions": ("warning", "a few episodes use a different convention", "convert all episodes to one"),
}


@dataclass(frozen=True)
class Finding:
    """The result of one check for one field of a dataset.

    Attributes:
      check: name of the check, a key of `CHECKS`.
      severity: one of `SEVERITIES`.
      count: number of steps, episodes or elements concerned, as the message says.
      num_episodes: number of episodes concerned.
      episode: index of the first of them.
      step: first step concerned in that episode, or None for the whole episode.
      field: name of the field, such as "observation['state']".
      message: description of the mistake.
      advice: suggestion for the user.
    """

    check: str
    severity: str
    count: int
    num_episodes: int
    episode: int
    step: int | None
    field: str
    message: str
    advice: str

    @property
    def place(self) -> str:
        """The first place concerned, such as 'episode 3, step 17'."""
        return f"episode {self.episode}" + ("" if self.step is None else f", step {self.step}")


@dataclass
class Tally:
    """A count of steps or episodes, with the first of them."""

    count: int = 0
    num_episodes: int = 0
    episode: int = -1
    step: int | None = None

    def add(self, block: Block, is_found: np.ndarray) -> None:
        """Counts the transitions `[M]` of a block that are marked."""
        found = np.flatnonzero(is_found)
        if len(found):
            positions = block.positions[found]
            step = int(block.step_numbers[found[0]])
            self.add_counts(len(found), len(np.unique(positions)), block.get_index(positions[0]), step)

    def add_episodes(self, block: Block, is_found: np.ndarray, steps: np.ndarray | None = None) -> None:
        """Counts the episodes `[E]` of a block that are marked, with the step concerned of each episode."""
        found = np.flatnonzero(is_found)
        if len(found):
            step = None if steps is None else int(steps[found[0]])
            self.add_counts(len(found), len(found), block.get_index(found[0]), step)

    def add_counts(self, count: int, num_episodes: int, episode: int, step: int | None) -> None:
        """Adds counts, with the first episode and step that they concern."""
        if not self.count:
            self.episode, self.step = episode, step
        self.count += count
        self.num_episodes += num_episodes

    def report(self, check: str, field: str, message: str, severity: str | None = None) -> Iterator[Finding]:
        """Yields a finding unless the count is 0; the severity is that of the check by default."""
        if self.count:
            default, _, advice = CHECKS[check]
            counts = (self.count, self.num_episodes, self.episode, self.step)
            yield Finding(check, severity or default, *counts, field, message, advice)


#: Tallies by check, field and message.
Tallies = defaultdict[tuple[str, str, str], Tally]


def list_elements(numbers: list[int]) -> str:
    """Returns the first of some numbers of elements of a vector, such as 'elements 0, 3'."""
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"element{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:8]))}{more}"
