"""Logs of vector environments that reset themselves, whose resets look like steps of the episodes.

Modes: Gymnasium 1.x, `gymnasium.vector.AutoresetMode`; `checks.resets` describes and finds them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import tree

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_one_of
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.episodes import Episode, read_until_error
from rlds2reverb.types.specs import map_structure

from ..checks import DatasetChecks
from ..checks.resets import Autoresets, begins_at_end, has_final_observation
from ..source import Source, identify_step, keep_images_encoded
from ..writers.written_episodes import drop_final_step
from .rlds_conventions import append_boundary, make_boundary_row

AutoresetMode = Literal["next_step", "same_step"]
NEXT_STEP, SAME_STEP = get_args(AutoresetMode)
#: Kinds of sources in whose first episodes resets are looked for without being asked.
_KINDS = ("d4rl", "memory", "minari", "rlds")
_NUM_FIRST = 16


def remove_resets(source: Source, mode: AutoresetMode) -> Source:
    """Returns a source without the resets of a vector environment.

    In the mode 'next_step', the first step of an episode is left out if its observation is the final one of the episode
    before. If that is unknown, it is the observation of the step, whose reward must then be 0. A reset after which the
    log ends is left out. In the mode 'same_step', final observations are read as unknown: terminal episodes end in
    zeros, and truncated ones lose their last transition.

    Reading to the end raises a `SourceError` if there are no such resets.

    Raises:
      ValueError: If the mode is unknown.
    """
    require_one_of("autoreset", mode, get_args(AutoresetMode))
    changed = replace(source, read=lambda: _read_without_resets(source, mode), count=None, num_episodes=None)
    return identify_step(source, changed, mode)


def _read_without_resets(source: Source, mode: AutoresetMode) -> Iterator[Episode]:
    """Yields the episodes without resets, numbered consecutively."""
    is_found, index = False, 0
    before: Episode | None = None
    for after in itertools.chain(source.read(), [None]):
        ended, before = before, after
        if ended is not None and after is not None and _is_reset(ended, after, mode):
            is_found = True
            if mode == NEXT_STEP:
                ended, before = _add_final_observation(ended, after), _drop_first_step(after)
        if ended is None or not ended.num_transitions + ended.dropped_last_transition or not ended.num_steps:
            continue
        is_forgotten = mode == SAME_STEP and not ended.unterminated
        yield replace(_forget_final_observation(ended) if is_forgotten else ended, index=index)
        index += 1
    if not is_found:
        sentence = f"requires resets in the steps, but {source.name} has none in this mode; leave it out"
        raise SourceError(sentence, about="autoreset", value=mode)


def _is_reset(ended: Episode, after: Episode, mode: AutoresetMode) -> bool:
    """Returns whether an episode begins with the reset after another one."""
    if ended.unterminated or not ended.num_steps or not after.num_steps:
        return False
    if has_final_observation(ended):
        return begins_at_end(after, ended)
    return mode == NEXT_STEP and not np.any(after.steps[fields.REWARD][0])


def _add_final_observation(episode: Episode, reset: Episode) -> Episode:
    """Returns an episode with the first observation of the next one as its final one, if that is unknown."""
    if has_final_observation(episode):
        return episode
    steps = episode.steps
    if episode.dropped_last_transition:
        discount = steps[fields.DISCOUNT][-1]
        steps = append_boundary(steps)
        steps[fields.DISCOUNT][-2] = discount
    return _set_final_observation(replace(episode, steps=steps, dropped_last_transition=False), reset)


def _forget_final_observation(episode: Episode) -> Episode:
    """Returns an episode as it is without a final observation; see `episodes.from_transitions`."""
    if not has_final_observation(episode):
        return episode
    if episode.is_terminal:
        return _set_final_observation(episode, replace(episode, steps=map_structure(make_boundary_row, episode.steps)))
    return drop_final_step(episode)


def _set_final_observation(episode: Episode, other: Episode) -> Episode:
    """Returns an episode whose last observation is the first one of the next episode."""
    observations, others = (part.steps[fields.OBSERVATION] for part in (episode, other))
    changed = tree.map_structure(lambda column, rows: np.concatenate([column[:-1], rows[:1]]), observations, others)
    return replace(episode, steps={**episode.steps, fields.OBSERVATION: changed})


def _drop_first_step(episode: Episode) -> Episode:
    """Returns an episode without its first step."""
    steps = map_structure(lambda column: column[1:], episode.steps)
    steps[fields.IS_FIRST] = np.arange(episode.num_steps - 1) == 0
    return replace(episode, steps=steps)


def warn_of_resets(source: Source) -> Source:
    """Returns a source with warnings about resets of a vector environment in its first episodes.

    A function is not called for that: the warnings are issued when it has been read.
    """
    if source.kind not in _KINDS:
        return source
    if source.count is None and source.kind == "memory":
        return replace(source, read=lambda: _read_and_warn(source))
    episodes = keep_images_encoded(source).read_range(0, _NUM_FIRST)
    return replace(source, warnings=(*source.warnings, *_describe_resets(source, episodes)))


def _read_and_warn(source: Source) -> Iterator[Episode]:
    first: list[Episode] = []
    for episode in source.read():
        first += [episode] if len(first) < _NUM_FIRST else []
        yield episode
    for sentence in _describe_resets(source, first):
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)


def _describe_resets(source: Source, episodes: Iterable[Episode]) -> list[str]:
    """Returns a sentence for each mode whose resets some episodes of a source contain."""
    checks = DatasetChecks(source, [Autoresets])
    for batch in batch_episodes(read_until_error(episodes, [])):
        checks.add_batch(batch)
    return [f"{source.name}: {found.message}; " + found.advice for found in checks.finish()]
