"""States of several buffers, taken over by all of them or by none."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from rlds2reverb._server.signals import signals_deferred
from rlds2reverb.errors import CheckpointError

from .buffer import ReplayBuffer
from .making import make_buffer


def load_states(
    buffers: Mapping[str, ReplayBuffer], states: Mapping[str, Mapping[str, Any]], *, timeout_secs: float
) -> None:
    """Has each buffer take over the state of its name; nobody else may use the buffers meanwhile.

    Each state is tried in another buffer first. Where one cannot be taken over later all the same, its buffer is as
    `ReplayBuffer.load_state_dict` says, and those before are put back to what they held, if there is space for it.

    Args:
      buffers: by name.
      states: by the same names; see `ReplayBuffer.state_dict`.
      timeout_secs: how long to wait for the server of a buffer that tries one.

    Raises:
      CheckpointError: if a state is damaged, or of another buffer or configuration; nothing is changed then.
      ValueError: if a buffer is closed; nothing is changed then.
      StorageFull, ServerUnavailable: see `ReplayBuffer.state_dict`.
    """
    with signals_deferred(), ExitStack() as undo:
        for name, buffer in buffers.items():
            _try(buffer, states[name], timeout_secs)
        before = {name: buffer.state_dict() for name, buffer in buffers.items()}
        for name, buffer in buffers.items():
            buffer.load_state_dict(states[name])
            undo.callback(buffer.load_state_dict, before[name])
        undo.pop_all()


def _try(buffer: ReplayBuffer, state: Mapping[str, Any], timeout_secs: float) -> None:
    with make_buffer(buffer.name, buffer.config, timeout_secs=timeout_secs) as other:
        try:
            other.load_state_dict(state)
        except CheckpointError as error:
            raise CheckpointError(f"buffer {buffer.name!r} cannot take over its state: {error}") from error
