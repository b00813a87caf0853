"""NativeCalls that are under way when the interpreter ends."""

import subprocess
import sys
import textwrap
import threading

import pytest

from rlds2reverb._server.native_calls import NativeCalls


def in_a_thread(work):
    """What a thread ends with."""
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


def test_the_end_waits_for_a_call_that_comes_back():
    calls = NativeCalls()
    calls.begin()
    back = threading.Timer(0.01, calls.end)
    back.start()
    assert calls.finish(timeout_secs=100)


def test_the_end_does_not_wait_for_ever():
    calls = NativeCalls()
    with calls.under_way():
        assert not calls.finish(timeout_secs=0.01)
    assert calls.finish(timeout_secs=0)


def test_after_the_end_only_the_main_thread_calls():
    calls = NativeCalls(held_secs=0.01)
    assert in_a_thread(calls.begin) is None
    calls.end()
    calls.finish()
    assert isinstance(in_a_thread(calls.begin), SystemExit)
    with calls.under_way():
        pass


def test_a_call_that_fails_has_ended():
    calls = NativeCalls()
    with pytest.raises(ValueError, match="wrong"):
        with calls.under_way():
            raise ValueError("wrong")
    assert calls.finish(timeout_secs=0)


@pytest.mark.slow
def test_a_program_ends_well_whose_daemon_threads_still_call():
    program = textwrap.dedent(
        """
        import threading, time
        import numpy as np
        import tensorflow as tf
        from rlds2reverb._encoding.item_blocks import ItemBlock
        from rlds2reverb._server.replay_server import ReplayServer
        from rlds2reverb.sampling import sample_dataset
        from rlds2reverb.tables import TableConfig
        from rlds2reverb._server.clients import table_infos
        from rlds2reverb._writing.reverb_writer import ReverbWriter

        server = ReplayServer([TableConfig("other")], {"x": tf.TensorSpec((), tf.float32)})
        writer = ReverbWriter(server.address, ["other"], {"x": np.zeros(1, np.float32)}, squeeze=True)
        rows = np.arange(5), np.ones(5, np.int64), np.ones(5)
        block = ItemBlock.of_one([np.ones(5, np.float32)], *rows)
        writer.write([block])
        batches = iter(sample_dataset(server.address, "other", 2))
        works = [
            lambda: table_infos(server.client),
            lambda: next(batches),
            lambda: writer.write([block]),
        ]
        begun = threading.Barrier(len(works) + 1)

        def loop(work):
            work()
            begun.wait()
            while True:
                work()

        for work in works:
            threading.Thread(target=loop, args=(work,), daemon=True).start()
        begun.wait()
        """
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
