"""A fixture that creates replay buffers and closes them at the end of the test."""

from contextlib import ExitStack

import pytest

from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig


@pytest.fixture
def make():
    """Provides a function that creates a seeded buffer of a class with fields of its configuration."""
    with ExitStack() as stack:

        def create(buffer_class=AdvancedReplayBuffer, name="demo", spec=None, seed=0, **config):
            config = BufferConfig(kind=buffer_class.kind, **config)
            return stack.enter_context(buffer_class(name, config, spec=spec, seed=seed))

        yield create
