"""Tests of the guarantees of `ingest` to a server, each in a situation in which items would be lost without it.

`tests/mutations/mutations.py` removes the lines that provide the guarantees and checks that a test here fails.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reverb
from faults import make_episodes
from proxies import run_proxy
from reference_impls import episode

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import ResumeError, ServerRestartedError, ServerUnavailableError
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.reverb.client import Connection, table_infos
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire.encoder import Encoder
from rlds2reverb.reverb.wire.item_blocks import ItemBlock
from rlds2reverb.reverb.writing.bulk_writer import BulkWriter
from rlds2reverb.reverb.writing.reverb_writer import ReverbWriter
from rlds2reverb.types.specs import ArraySpec
from rlds2reverb.types.tables import RateLimiter, Selector, TableConfig

NUM_ITEMS = 100 * 149


class StopRunError(Exception):
    """Interrupts a run."""


@pytest.fixture(autouse=True)
def small_groups(monkeypatch, tmp_path):
    """Makes this process write many small groups, save its state after each, and keep journals in a separate folder."""
    monkeypatch.setattr("rlds2reverb.reverb.wire.item_blocks.GROUP_BYTES", 1 << 15)
    monkeypatch.setattr("rlds2reverb.reverb.writing.server_destination.SECS_BETWEEN_SAVES", 0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def table_info(server):
    return table_infos(server.address)["replay"]


def stop_at(number, server):
    """Returns a callback that stops a run at an episode, once the server has the items of most earlier episodes."""

    def progress(stage, current):
        if (stage, current.index) == ("write", number):
            while table_info(server).current_size < (number - 25) * 149:
                time.sleep(0.01)
            raise StopRunError

    return progress


def begin_run(server, number, **options):
    """Runs `ingest` until it is stopped at an episode."""
    with pytest.raises(StopRunError):
        ingest(make_episodes(), server.address, progress=stop_at(number, server), **options)


@pytest.mark.drill("cluster")
def test_batches_lost_with_a_connection_are_sent_again():
    with ReplayServer([TableConfig()]) as server, run_proxy(server.port) as proxy:

        def break_connection(stage, current):
            if (stage, current.index) == ("write", 40):
                proxy.bytes_until_break = 50_000

        report = ingest(make_episodes(), proxy.port, progress=break_connection)
        assert (proxy.num_broken, report.items, report.restarts) == (1, NUM_ITEMS, 0)
        assert table_info(server).current_size == NUM_ITEMS


@pytest.mark.slow
def test_journal_of_an_earlier_server_process_is_not_trusted(tmp_path):
    """The new process has the first items and, from a different run, as many items as the journal claims."""
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root") as server:
        begin_run(server, 40)
        sizes = [table_info(server).current_size]  # The last items of the run may arrive during the checkpoint.
        server.checkpoint()
        sizes.append(table_info(server).current_size)
        begin_run(server, 80)
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root", port=server.port) as server:
        assert 0 < sizes[0] <= table_info(server).current_size <= sizes[1]
        others = [episode(150, terminal=False, start=-1000 * n - 1) for n in range(60)]
        assert ingest(others, server.address).items == 60 * 149
        ingest(make_episodes(), server.address)
        assert table_info(server).current_size == NUM_ITEMS + 60 * 149


@pytest.mark.slow
def test_runs_to_two_servers_have_two_journals():
    with ReplayServer([TableConfig()]) as first, ReplayServer([TableConfig()]) as second:
        for server in (first, second):
            begin_run(server, 60)
        for server in (first, second):
            report = ingest(make_episodes(), server.address)
            assert report.resumed_episodes > 0 and report.items == table_info(server).current_size == NUM_ITEMS


def test_resuming_with_changed_priorities_raises_and_writes_nothing():
    """The two functions have the same name, so that only the priorities themselves reveal the change."""

    def make_priority(value):
        return lambda episode, items: np.full(len(items), value)

    with ReplayServer([TableConfig()]) as server:
        begin_run(server, 60, priority=make_priority(2.0))
        before = table_info(server).rate_limiter_info.insert_stats.completed
        with pytest.raises(ResumeError, match="its first episode has different items or priorities"):
            ingest(make_episodes(), server.address, priority=make_priority(3.0))
        assert table_info(server).rate_limiter_info.insert_stats.completed == before
        assert ingest(make_episodes(), server.address, priority=make_priority(2.0)).resumed_episodes > 0


@pytest.mark.parametrize(
    ("length", "on_invalid", "max_size"),
    [(1, "skip_episode", 1200), (1, "error", 1499), (2, "skip_episode", 1200), (1, "error", 1500)],
)
def test_too_many_items_raise_before_the_first_is_written(length, on_invalid, max_size):
    """1,000 rows are 500 episodes of two transitions, so 1,500 steps: as many items of one step, and 1,000 of two.

    Only with 'error' is the number of steps known, because all episodes are checked first.
    """
    ends = np.arange(1000) % 2 == 1
    rows = {"observations": np.ones((1000, 99)), "actions": np.ones((1000, 1)), "rewards": np.ones(1000)}
    source = load({**rows, "terminals": ends, "timeouts": 0 * ends, "next_observations": np.ones((1000, 99))})
    assert source.num_rows == 1000
    options = {"adder": TrajectoryWindows(length), "on_invalid": on_invalid}
    num_items = 1500 if length == 1 else 1000
    with ReplayServer([TableConfig(max_size=max_size)]) as server:
        if num_items > max_size:
            with pytest.raises(ValueError, match=f"at least 1,500 items, but the smallest table holds {max_size:,}"):
                ingest(source, server.address, **options)
            assert table_info(server).rate_limiter_info.insert_stats.completed == 0
        else:
            assert ingest(source, server.address, **options).items == num_items


def test_missing_items_are_written_again():
    """Some items are missing, although the table has more than the journal says; the first episode's are kept."""
    with ReplayServer([TableConfig("replay", Selector("uniform"))]) as server:
        ingest(make_episodes(1), server.address)
        first = sample_keys(server, 3000)
        assert len(first) == 149
        begin_run(server, 60)
        others = sample_keys(server, 1000) - first
        assert len(others) > 500
        with Connection(server.address) as connection:
            connection.delete("replay", sorted(others), timeout_secs=10)
        more = [episode(150, terminal=False, start=-1000 * n - 1) for n in range(20)]
        ingest(more, server.address, options=IngestOptions(key_seed=1))  # This run has a separate journal.
        ingest(make_episodes(), server.address)
        assert table_info(server).current_size == NUM_ITEMS + 20 * 149


@pytest.mark.slow
def test_reset_table_is_written_again_with_reverb_s_writer():
    """Its items have random keys, so that only the size of the table shows the reset."""
    options = IngestOptions(writer="reverb")
    with ReplayServer([TableConfig()]) as server:
        with pytest.raises(StopRunError):
            ingest(make_episodes(), server.address, progress=stop_at(60, server), options=options)
        server.client.reset("replay")
        ingest(make_episodes(), server.address, options=options)
        assert table_info(server).current_size == NUM_ITEMS


def sample_keys(server, num_samples):
    """Returns the keys of the items in a number of samples."""
    samples = server.client.sample("replay", num_samples, emit_timesteps=False)
    return {int(sample.info.key) for sample in samples}


@pytest.mark.slow
def test_journal_contains_only_confirmed_items():
    """A run that fails because a stack is full, and accepts no items until it is sampled, resumes without losing items.

    The first items, which the second run looks up, stay at the bottom, and the stack's size does not reveal the loss.
    """
    lifo = Selector("lifo")
    stack = TableConfig("replay", lifo, lifo, 500, 1, RateLimiter("stack", 500))
    with ReplayServer([stack], TrajectoryWindows().item_spec(load(make_episodes(1)).step_spec)) as server:
        with pytest.raises(ServerUnavailableError, match="rate limiter blocks"):
            ingest(make_episodes(10), server.address, timeout_secs=3)
        seen = set()

        def sample(num_items):
            samples = reverb.TrajectoryDataset.from_table_signature(
                server.address, "replay", max_in_flight_samples_per_worker=10, rate_limiter_timeout_ms=10_000
            )
            for batch in samples.batch(10).as_numpy_iterator():
                seen.update(batch.data.observation[:, 0, 0].tolist())
                if len(seen) >= num_items:
                    break

        sample(10)
        with ThreadPoolExecutor(1) as thread:
            sampled = []

            def begin_to_sample(stage, current):
                if stage != "check" and not sampled:
                    sampled.append(thread.submit(sample, 10 * 149))

            ingest(make_episodes(10), server.address, progress=begin_to_sample)
            sampled[0].result()
        assert len(seen) == 10 * 149  # Whole batches, so that the sampler does not wait for more items.


@pytest.mark.parametrize("kind", ["bulk", "reverb"])
def test_restart_after_the_last_item_raises_on_flush(kind):
    block = ItemBlock.from_episode([np.ones(5, np.float32)], np.arange(5), np.ones(5, np.int64), np.ones(5))
    with ReplayServer([TableConfig()]) as server:
        if kind == "bulk":
            encoder = Encoder([ArraySpec((), np.dtype(np.float32))], ["replay"], squeeze=True)
            writer = BulkWriter(server.address, encoder)
        else:
            writer = ReverbWriter(server.address, ["replay"], squeeze=True)
        writer.write([block])
        while table_info(server).current_size < 5:
            time.sleep(0.01)
    with ReplayServer([TableConfig()], port=server.port):
        with pytest.raises((ServerRestartedError, ServerUnavailableError), match="was restarted"):
            writer.flush()
        writer.close()
