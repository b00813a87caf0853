"""Tests of Reverb's own writer, which runs in a process that is killed if it waits for too long."""

import os
import signal
import subprocess
import sys
import textwrap

import internals
import numpy as np
import pytest
from faults import find_server
from process_signals import suspend_process, wait_for_end

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire.item_blocks import ItemBlock
from rlds2reverb.reverb.writing.reverb_writer import ReverbWriter
from rlds2reverb.types.tables import TableConfig

BLOCK = ItemBlock.from_episode([np.ones(5, np.float32)], np.arange(5), np.ones(5, np.int64), np.ones(5))


@pytest.fixture
def server():
    with ReplayServer([TableConfig()]) as server:
        yield server


@pytest.fixture
def writer(server):
    """Provides a writer that has written five items."""
    writer = ReverbWriter(server.address, ["replay"], squeeze=True, timeout_secs=1.0)
    writer.write([BLOCK], "five")
    assert writer.confirmed_state == "five"
    yield writer
    writer.close()


def test_process_ends_when_the_writer_is_closed(writer):
    writer.close()
    wait_for_end(internals.find_pid(writer))


@pytest.mark.slow
def test_process_ends_when_the_writer_is_closed_although_the_server_is_stopped(server, writer):
    pid = find_server(server.port)
    suspend_process(pid)
    try:
        with pytest.raises(ServerUnavailableError, match=f"localhost:{server.port}"):
            writer.write([BLOCK], "ten")
        writer.close()
        assert writer.confirmed_state == "five"
        wait_for_end(internals.find_pid(writer))
    finally:
        os.kill(pid, signal.SIGCONT)


def test_killed_process_raises(writer):
    os.kill(internals.find_pid(writer), signal.SIGKILL)
    with pytest.raises(ServerUnavailableError, match=r"localhost:\d+ did not get all items: .*"):
        writer.write([BLOCK])


def test_error_of_reverb_raises(server):
    with ReplayServer([TableConfig("other")]) as other:
        writer = ReverbWriter(other.address, ["replay"], squeeze=True, timeout_secs=10.0)
        with pytest.raises(ServerUnavailableError, match=r"localhost:\d+ did not get all items: \w+: "):
            writer.write([BLOCK])
        writer.close()


@pytest.mark.slow
def test_program_exits_cleanly_while_daemon_threads_make_calls():
    program = textwrap.dedent(
        """
        import threading
        from contextlib import suppress
        import numpy as np
        import tensorflow as tf
        from rlds2reverb.reverb.wire.item_blocks import ItemBlock
        from rlds2reverb.reverb.server.replay_server import ReplayServer
        from rlds2reverb.reverb.sampling import sample_dataset
        from rlds2reverb.types.tables import TableConfig
        from rlds2reverb.reverb.client import table_infos
        from rlds2reverb.reverb.writing.reverb_writer import ReverbWriter
        from rlds2reverb.errors import ServerUnavailableError

        server = ReplayServer([TableConfig("other")], {"x": tf.TensorSpec((), tf.float32)})
        writer = ReverbWriter(server.address, ["other"], squeeze=True)
        rows = np.arange(5), np.ones(5, np.int64), np.ones(5)
        block = ItemBlock.from_episode([np.ones(5, np.float32)], *rows)
        writer.write([block])
        batches = iter(sample_dataset(server.address, "other", 2))
        functions = [
            lambda: table_infos(server.address),
            lambda: next(batches),
            lambda: writer.write([block]),
        ]
        started = threading.Barrier(len(functions) + 1)

        def loop(function):
            function()
            started.wait()
            with suppress(ServerUnavailableError):  # The writer's process ends with this one.
                while True:
                    function()

        for function in functions:
            threading.Thread(target=loop, args=(function,), daemon=True).start()
        started.wait()
        """
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
