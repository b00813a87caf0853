"""Tests of native calls that are in progress when the interpreter shuts down."""

import subprocess
import sys
import textwrap
import threading

import pytest

from rlds2reverb._writing.native_calls import NativeCalls


def run_in_thread(work):
    """Returns the result or exception of a function that runs in a thread."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]


def test_shutdown_waits_for_a_call_that_returns():
    calls = NativeCalls()
    calls.begin()
    threading.Timer(0.01, calls.end).start()
    assert calls.shut_down(timeout_secs=100)


def test_shutdown_does_not_wait_forever():
    calls = NativeCalls()
    with calls.track():
        assert not calls.shut_down(timeout_secs=0.01)
    assert calls.shut_down(timeout_secs=0)


def test_only_the_main_thread_can_call_after_shutdown():
    calls = NativeCalls(block_secs=0.01)
    assert run_in_thread(calls.begin) is None
    calls.end()
    calls.shut_down()
    assert isinstance(run_in_thread(calls.begin), SystemExit)
    with calls.track():
        pass


def test_failed_call_is_no_longer_active():
    calls = NativeCalls()
    with pytest.raises(ValueError, match="wrong"):
        with calls.track():
            raise ValueError("wrong")
    assert calls.shut_down(timeout_secs=0)


@pytest.mark.slow
def test_program_exits_cleanly_while_daemon_threads_make_calls():
    program = textwrap.dedent(
        """
        import threading, time
        import numpy as np
        import tensorflow as tf
        from rlds2reverb._encoding.item_blocks import ItemBlock
        from rlds2reverb._server.replay_server import ReplayServer
        from rlds2reverb.sampling import sample_dataset
        from rlds2reverb.tables import TableConfig
        from rlds2reverb.client import table_infos
        from rlds2reverb._writing.reverb_writer import ReverbWriter

        server = ReplayServer([TableConfig("other")], {"x": tf.TensorSpec((), tf.float32)})
        writer = ReverbWriter(server.address, ["other"], {"x": np.zeros(1, np.float32)}, squeeze=True)
        rows = np.arange(5), np.ones(5, np.int64), np.ones(5)
        block = ItemBlock.from_episode([np.ones(5, np.float32)], *rows)
        writer.write([block])
        batches = iter(sample_dataset(server.address, "other", 2))
        functions = [
            lambda: table_infos(server.client),
            lambda: next(batches),
            lambda: writer.write([block]),
        ]
        started = threading.Barrier(len(functions) + 1)

        def loop(function):
            function()
            started.wait()
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
