"""Tests of `ingest`: items are stored bit for bit, and errors are raised before the first item is written."""

import contextlib
import itertools
import json
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import internals
import numpy as np
import pytest
import reverb
import tree
from hypothesis import given, strategies as st
from properties import examples, mark_slow_except
from reference_impls import assert_equal_nests, episode, episodes, naive_trajectories, read_items, rlds_dataset
from tf_agents.replay_buffers.reverb_replay_buffer import ReverbReplayBuffer
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb import IngestWarning, create_trajectory_data_spec
from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import Source, load
from rlds2reverb.datasets.transforms import CastFloats, CutAtTerminal, NormalizeObservations, apply_transforms
from rlds2reverb.errors import (
    CheckpointError,
    InvalidEpisodeError,
    ServerUnavailableError,
    SourceError,
    SpecMismatchError,
)
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.reverb.client import find_address
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire.encoder import Encoder
from rlds2reverb.reverb.writing.directory_destination import DirectoryDestination
from rlds2reverb.reverb.writing.transfer import TransferState
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.items import Items
from rlds2reverb.types.specs import ArraySpec
from rlds2reverb.types.tables import RateLimiter, Selector, TableConfig, item_signature
from rlds2reverb.types.trajectories import trajectory_columns, trajectory_spec

ONCE_FIFO = TableConfig("items", Selector("fifo"), Selector("fifo"), max_times_sampled=1)


def make_server(source, length=2, config=ONCE_FIFO, signature=True):
    spec = trajectory_spec(load(source).step_spec)
    return ReplayServer([config], item_signature(spec, length) if signature else None)


def ingest_and_read(source, *, length=2, stride=1, **options):
    with make_server(source, length) as server:
        report = ingest(source, server.address, "items", adder=TrajectoryWindows(length, stride), **options)
        return report, read_items(server.address, "items")


def slide_windows(episodes_columns, length, stride):
    """Yields all windows of the rows of each episode, with a double loop."""
    for columns in episodes_columns:
        for begin in range(0, len(columns.step_type) - length + 1, stride):
            yield tree.map_structure(lambda column, b=begin: column[b : b + length], columns)


# --- bit-for-bit equality

DATASETS = [
    ("d4rl/invertedpendulum_random-v2.hdf5", 300),
    ("d4rl/pendulum_mixed-v2.hdf5", 4),
    ("tfds_fake/d4rl_adroit_door/door-human-v0.hdf5", None),
    ("tfds_fake/d4rl_mujoco_halfcheetah/halfcheetah_medium.hdf5", None),
    ("tfds_fake/d4rl_mujoco_hopper/hopper_medium.hdf5", None),
    ("tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5", None),
    ("tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5", None),
    ("tfds_fake/d4rl_mujoco_hopper/hopper_random-v1.hdf5", None),
    ("tfds_fake/robomimic_ph/lift_low_dim.hdf5", None),
    ("rlds/physics_rlds/hopper_flat/1.0.0", 2),
    ("rlds/physics_rlds/pendulum_dict/1.0.0", 2),
    ("rlds/physics_rlds/pendulum_pixels/1.0.0", 2),
    ("rlds_prepared/d4rl_adroit_door/v0-human/1.1.0", None),
    ("rlds_prepared/d4rl_mujoco_halfcheetah/v1-medium-replay/1.2.0", None),
    ("rlds_prepared/d4rl_mujoco_hopper/v0-medium/1.2.0", None),
    ("rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0", None),
    ("rlds_prepared/rlu_control_suite/cartpole_swingup/1.0.0", None),
    ("rlds_prepared/robomimic_ph/lift_ph_low_dim/1.0.1", None),
    ("minari/mujoco/hopper/dev-v0", 2),
    ("minari/classic/pendulum-dict/dev-v0", 2),
    ("malformed/hdf5/unclosed_tail.hdf5", None),
    ("malformed/rlds/single_step", None),
]


@pytest.mark.filterwarnings("ignore::rlds2reverb.IngestWarning")
@pytest.mark.parametrize(("name", "max_episodes"), mark_slow_except(DATASETS[1:2], DATASETS))
def test_shipped_datasets_are_stored_bit_for_bit(data, name, max_episodes):
    source = load(data / name)
    if "robomimic_ph/lift_ph" in name:  # Its episodes are terminal at several steps.
        source, _ = apply_transforms(source, [CutAtTerminal()])
    selected = [episode.steps for episode in itertools.islice(source, max_episodes)]
    report, items = ingest_and_read(selected if max_episodes else source)
    expected = list(slide_windows(map(trajectory_columns, selected), 2, 1))
    assert report.items == len(items) == len(expected) > 0
    assert report.steps == sum(len(steps["is_first"]) for steps in selected)
    for item, expected_item in zip(items, expected, strict=True):
        assert_equal_nests(item, expected_item)


@pytest.mark.slow
@given(episodes(), st.integers(1, 4), st.integers(1, 3))
@examples(25)
def test_generated_episodes_are_stored_bit_for_bit(all_steps, length, stride):
    report, items = ingest_and_read(all_steps, length=length, stride=stride)
    expected = list(slide_windows(map(trajectory_columns, all_steps), length, stride))
    assert len(items) == len(expected) == report.items
    for item, expected_item in zip(items, expected, strict=True):
        assert_equal_nests(item, expected_item)


def test_items_match_the_naive_loop():
    all_steps = [episode(3, terminal=True), episode(2, terminal=False, start=30)]
    _, items = ingest_and_read(all_steps, length=1)
    for item, expected_item in zip(items, naive_trajectories(all_steps, "product"), strict=True):
        for name, value in expected_item.items():
            np.testing.assert_array_equal(getattr(item, name)[0], value)


@pytest.mark.slow
def test_several_tables_receive_the_same_items():
    spec = item_signature(trajectory_spec(load([episode(3, terminal=True)]).step_spec), 2)
    configs = [ONCE_FIFO, TableConfig("more", Selector("fifo"), max_times_sampled=1)]
    with ReplayServer(configs, spec) as server:
        report = ingest([episode(3, terminal=True)], server.address, ["items", "more"])
        items, more = read_items(server.address, "items"), read_items(server.address, "more")
    assert (report.tables, report.items) == (("items", "more"), 2)
    for item, expected_item in zip(items, more, strict=True):
        assert_equal_nests(item, expected_item)


def test_items_are_stored_with_their_priority():
    with make_server([episode(3, terminal=True)], config=TableConfig("items")) as server:
        ingest([episode(3, terminal=True)], server.client, "items", priority=2.5)
        sample = next(iter(server.client.sample("items", emit_timesteps=False)))
    assert sample.info.priority == 2.5


# --- the report


def test_report_counts_episodes_items_and_bytes(data):
    source = load(data / "malformed/hdf5/unclosed_tail.hdf5")
    report, items = ingest_and_read(source)
    assert (report.episodes, report.unterminated, report.episodes_too_short) == (4, 1, 0)
    assert report.size_bytes == sum(e.num_bytes for e in source)
    assert set(report.seconds) == {"check", "read", "convert", "write"} and report.steps_per_sec > 0
    as_dict = json.loads(json.dumps(report.as_dict()))
    assert as_dict["items"] == len(items) and as_dict["source"] == "unclosed_tail.hdf5"


def test_report_counts_episodes_too_short_for_an_item():
    report, items = ingest_and_read([episode(1, terminal=False), episode(5, terminal=True)], length=3)
    assert (report.episodes_too_short, report.items, len(items)) == (1, 3, 3)


def test_progress_is_called_for_each_episode():
    calls = []
    ingest_and_read(
        [episode(2, terminal=True), episode(3, terminal=True)], progress=lambda stage, e: calls.append((stage, e.index))
    )
    assert calls == [("check", 0), ("check", 1), ("write", 0), ("write", 1)]


# --- invalid data


def make_invalid_episodes():
    """Returns four episodes, two of which are invalid in ways that TF-Agents accepts silently."""
    nan, outside = episode(3, terminal=True), episode(3, terminal=True)
    nan["reward"] = np.array([1, np.nan, 1], np.float32)
    outside["discount"] = np.array([1, 1.5, 1], np.float32)
    return [episode(2, terminal=True), nan, outside, episode(4, terminal=False)]


def test_invalid_episode_raises_before_anything_is_written():
    with make_server(make_invalid_episodes()) as server:
        with pytest.raises(
            InvalidEpisodeError, match=r"step\['reward'\] holds NaN. \(episode 1, step 1, field reward\)"
        ):
            ingest(make_invalid_episodes(), server.address, "items")
        assert server.client.server_info(timeout=10)["items"].rate_limiter_info.insert_stats.completed == 0


def test_invalid_episodes_are_skipped_or_kept_and_counted():
    report, items = ingest_and_read(make_invalid_episodes(), on_invalid="skip_episode")
    assert (report.episodes, report.skipped_episodes, len(items)) == (2, 2, 4)
    assert [(p.episode, p.step, p.field) for p in report.errors] == [(1, 1, "reward"), (2, 1, "discount")]
    report, items = ingest_and_read(make_invalid_episodes(), on_invalid="keep")
    assert (report.episodes, report.kept_errors, len(items)) == (4, 2, 8)


def test_episode_without_steps_is_skipped_and_counted(data):
    source = load(data / "malformed/rlds/zero_length_episode", last_step="boundary")
    for on_invalid in ("skip_episode", "keep"):
        report, _ = ingest_and_read(source, on_invalid=on_invalid)
        assert (report.episodes, report.skipped_episodes) == (2, 1)


@pytest.mark.drill("F11")
def test_unstorable_episodes_are_skipped_when_errors_are_kept():
    uneven, float64 = episode(3, terminal=True), episode(3, terminal=True)
    uneven["reward"] = uneven["reward"][:2]
    float64["reward"] = float64["reward"].astype(np.float64)
    report, items = ingest_and_read([episode(2, terminal=True), uneven, float64], on_invalid="keep")
    assert (report.episodes, report.skipped_episodes, len(items)) == (1, 2, 1)
    assert [error.episode for error in report.errors] == [1, 2]


@pytest.mark.drill("F11")
def test_different_spec_raises_before_anything_is_written():
    float64 = episode(3, terminal=True)
    float64["reward"] = float64["reward"].astype(np.float64)
    with make_server([episode(2, terminal=True)]) as server:
        with pytest.raises(InvalidEpisodeError, match=r"step\['reward'\] is float64 \[\], but the first episode"):
            ingest([episode(2, terminal=True), float64], server.address, "items")
        assert server.client.server_info(timeout=10)["items"].current_size == 0


# --- errors before the first item


@pytest.mark.drill("F11")
def test_different_table_signature_raises(data):
    path = data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5"
    as_float32, _ = apply_transforms(load(path), [CastFloats()])
    with make_server(as_float32) as server:
        message = r"item\['observation'\] is float64 \[2, 11\], but table 'items' expects float32 \[2, 11\]; cast"
        with pytest.raises(SpecMismatchError, match=message):
            ingest(path, server.address, "items")
        assert server.client.server_info(timeout=10)["items"].current_size == 0
        assert ingest(as_float32, server.address, "items").items == 49


def test_table_without_a_signature_accepts_any_item():
    with make_server([episode(2, terminal=True)], signature=False) as server:
        assert ingest([episode(2, terminal=True, nested=True)], server.address, "items").items == 1


@pytest.mark.slow
def test_tf_agents_replay_buffer_reads_the_items(data):
    """The table is built and sampled as in TF-Agents: its signature is the spec of RLDS data, with a free length."""
    source = load(data / "tfds_fake/d4rl_mujoco_hopper/hopper_random-v1.hdf5")
    spec = create_trajectory_data_spec(source.to_rlds())
    with ReplayServer([TableConfig("items")], tensor_spec.add_outer_dim(spec)) as server:
        assert ingest(source, server.address, "items").items == 50
        buffer = ReverbReplayBuffer(spec, table_name="items", sequence_length=2, server_address=server.address)
        dataset = buffer.as_dataset(sample_batch_size=32, num_steps=2)
        experience, info = next(iter(dataset))
        transition = trajectory.to_transition(*(tree.map_structure(lambda c, t=t: c[:, t], experience) for t in (0, 1)))
    rows = {row.tobytes() for e in source for row in e.steps["observation"]}
    assert {row.tobytes() for row in transition.next_time_step.observation.numpy()} <= rows
    assert experience.observation.shape == (32, 2, 11) and np.all(info.priority == 1.0)


def test_missing_table_raises_with_its_name():
    with make_server([episode(2, terminal=True)]) as server:
        with pytest.raises(ValueError, match="the server has no table 'other'; it has items"):
            ingest([episode(2, terminal=True)], server.address, "other")


def test_strings_raise():
    steps = episode(2, terminal=True)
    steps["observation"] = {"text": np.array([b"a", b"b"], object), "state": steps["observation"]}
    with pytest.raises(
        SpecMismatchError, match=r"item\['observation'\]\['text'\] holds strings, which tables do not support; drop"
    ):
        ingest_and_read([steps])


@pytest.mark.parametrize("priority", [-1, float("nan"), float("inf"), 1e308, 1.1e12])
@pytest.mark.drill("F13")
def test_invalid_priorities_raise_before_they_are_sent(priority):
    message = r"the priority of item 0 of episode 0 must be a finite number in \[0, 1e\+12\]"
    for argument in (priority, lambda episode, items: priority):
        with pytest.raises(ValueError, match=message):
            ingest_and_read([episode(2, terminal=True)], priority=argument)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_invalid": "ignore"}, "on_invalid must be one of 'error', 'skip_episode', 'keep', got 'ignore'"),
        ({"timeout_secs": float("inf")}, "timeout_secs must be above 0 and at most one year, got inf"),
        ({"timeout_secs": float("nan")}, "timeout_secs must be above 0 .*, got nan"),
        ({"tables": []}, r"tables must be one or more tables with different names, got \[\]"),
        ({"tables": ["a", "a"]}, "tables must be one or more tables with different names, got"),
        ({"layout": "rows"}, "layout must be one of 'columns', 'packed', got 'rows'"),
        ({"options": {"writer": "own"}}, "writer must be one of 'bulk', 'reverb', got 'own'"),
        ({"options": {"chunk_length": 0}}, "chunk_length must be an integer from 1 to 1,000,000, got 0"),
        ({"options": {"chunk_length": -1}}, "chunk_length must be an integer from 1 to 1,000,000, got -1"),
        ({"options": {"chunk_length": 1_000_001}}, "chunk_length must be an integer from 1 to 1,000,000, got 1000001"),
        (
            {"options": {"writer": "reverb"}, "layout": "packed"},
            "writer='reverb' requires a server .* .layout='columns'",
        ),
    ],
)
def test_invalid_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        if "options" in options:
            options = {**options, "options": IngestOptions(**options["options"])}
        ingest([episode(2, terminal=True)], "localhost:1", **options)


@pytest.mark.parametrize("address", ["nonsense", "host:", ":80", "host:99999", "host:x"])
def test_connect_raises_unless_the_address_is_host_and_port(address):
    with pytest.raises(ValueError, match="server must be HOST:PORT such as localhost:8000"):
        find_address(address)


def test_server_may_be_an_object_a_port_or_an_address():
    server = reverb.Server([TableConfig("items").build()], port=None)
    for destination in (server, server.localhost_client(), server.port, f"localhost:{server.port}"):
        assert ingest([episode(2, terminal=True)], destination, "items").items == 1
    server.stop()


def test_destination_is_a_directory_unless_it_is_host_and_port(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for destination in ("out", f"{tmp_path}/run:8000", "8000", tmp_path / "path", Path("name:8000")):
        assert ingest([episode(2, terminal=True)], destination).items == 1
        assert Path(destination).is_dir()
    with pytest.raises(ServerUnavailableError, match="no Reverb server answered"):
        ingest([episode(2, terminal=True)], f"localhost:{free_port()}", timeout_secs=0.3)


def test_reverb_writer_raises_when_the_destination_is_a_directory(tmp_path):
    with pytest.raises(ValueError, match="writer='reverb' requires a server"):
        ingest([episode(2, terminal=True)], str(tmp_path / "out"), options=IngestOptions(writer="reverb"))


# --- timeouts


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.timeout(60)
@pytest.mark.drill("F14")
def test_missing_server_raises_within_the_timeout():
    with pytest.raises(
        ServerUnavailableError, match="no Reverb server answered at localhost:.* within 0.3 s; start one"
    ):
        ingest([episode(2, terminal=True)], free_port(), timeout_secs=0.3)


@pytest.mark.slow
@pytest.mark.drill("F17")
def test_blocking_rate_limiter_raises():
    limiter = RateLimiter("sample_to_insert_ratio", 3, samples_per_insert=1.0, error_buffer=2.0)
    with make_server([episode(9, terminal=True)], config=TableConfig("items", rate_limiter=limiter)) as server:
        message = r"waited 3 s for localhost:.* its rate limiter blocks: table 'items' has \d inserted, 0 sampled"
        with pytest.raises(ServerUnavailableError, match=message):
            ingest([episode(60, terminal=True)], server.address, "items", timeout_secs=3)


def test_source_damaged_in_the_middle_raises(data):
    with make_server(data / "malformed/rlds/ok_control") as server:
        damaged = load(data / "malformed/rlds/truncated_tfrecord", last_step="transition")
        with pytest.raises(SourceError, match="is damaged at episode 1"):
            ingest(damaged, server.address, "items")
        assert server.client.server_info(timeout=10)["items"].current_size == 0


def test_rlds_dataset_is_stored_like_a_list_of_episodes():
    all_steps = [episode(4, terminal=True, nested=True), episode(2, terminal=False, nested=True)]
    dataset = load(rlds_dataset(all_steps), last_step="boundary")
    from_dataset, from_list = ingest_and_read(dataset)[1], ingest_and_read(all_steps)[1]
    for item, expected_item in zip(from_dataset, from_list, strict=True):
        assert_equal_nests(item, expected_item)


# --- resuming


@dataclass
class LastRows:
    """An adder for the last rows of each episode, whose repr does not show the length."""

    length: int

    def __repr__(self):
        return "LastRows"

    def __call__(self, episode):
        rows = trajectory_columns(episode.steps)
        begin = max(0, len(rows.step_type) - self.length)
        return Items(rows, np.array([begin]), np.array([len(rows.step_type) - begin]))

    def item_spec(self, step_spec):
        return item_signature(trajectory_spec(step_spec), None)


def test_complete_directory_raises_when_the_dataset_has_grown(tmp_path):
    growing = [episode(3, terminal=True), episode(4, terminal=True)]

    def make_source():  # The number of its episodes is unknown.
        return Source("log", "memory", lambda: (Episode(steps, index) for index, steps in enumerate(growing)))

    assert ingest(make_source(), tmp_path / "out").items == 5
    growing.append(episode(5, terminal=True))
    with pytest.raises(CheckpointError, match="out is complete, but the dataset has more episodes than it"):
        ingest(make_source(), tmp_path / "out")


def test_complete_directory_raises_when_the_items_differ(tmp_path):
    all_steps = [episode(9, terminal=True)]
    ingest(all_steps, tmp_path / "out", adder=LastRows(2))
    with pytest.raises(
        CheckpointError,
        match="out exists already, written with different arguments: the first episode had different items",
    ):
        ingest(all_steps, tmp_path / "out", adder=LastRows(5))


def test_directory_without_items_raises(tmp_path):
    with pytest.raises(CheckpointError, match="would contain no items: all episodes are too short for an item"):
        ingest([episode(2, terminal=True)], tmp_path / "out", adder=TrajectoryWindows(5))
    assert not (tmp_path / "out").exists()


@pytest.mark.drill("F10")
def test_failed_calls_do_not_change_a_foreign_directory(tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/note.txt").touch()
    for call in (
        lambda: ingest([episode(2, terminal=True)], tmp_path / "foreign"),
        lambda: ReplayServer(directory=tmp_path / "foreign"),
    ):
        with pytest.raises(CheckpointError):
            call()
        assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["note.txt"]


def test_restart_without_resume_discards_the_journal(tmp_path):
    """If a run without resume is killed before its first part is complete, nothing of the earlier run is left."""
    partial = tmp_path / "out.partial"
    source = load([episode(3, terminal=True)])
    description = {"run": 1}
    for resume in (True, False):
        encoder = Encoder([ArraySpec((), np.dtype(np.float32))], ["t"], number_items=True)
        with DirectoryDestination(
            tmp_path / "out", [TableConfig("t")], None, encoder, description=description
        ) as writer:
            assert writer.open(resume=resume) is None
            if resume:
                internals.end_part(writer, TransferState(1, "", 0, 0))
    assert not (partial / "journal.json").exists()
    assert ingest(source, tmp_path / "out").items == 2


def test_directory_keeps_the_configs_of_two_tables(tmp_path):
    configs = [TableConfig("small", Selector("uniform"), max_size=9), TableConfig("heap", Selector("max_heap"))]
    ingest([episode(9, terminal=True)], tmp_path / "out", configs)
    with ReplayServer(directory=tmp_path / "out") as server:
        infos = server.client.server_info(timeout=10)
    assert {name: (info.max_size, info.current_size) for name, info in infos.items()} == {
        "small": (9, 8),
        "heap": (2**31 - 1, 8),
    }
    with pytest.raises(
        ValueError, match=r"at least 11 items, but the smallest table holds 9; use a larger one \(max_size"
    ):
        ingest([episode(12, terminal=True)], tmp_path / "other", configs)
    assert not list(tmp_path.glob("other*"))


# --- table capacity


def small_table(**limiter):
    return TableConfig("items", Selector("uniform"), max_size=10, **limiter)


def test_too_many_items_raise_before_the_first_is_written():
    all_steps = [episode(7, terminal=True, start=10 * n) for n in range(2)]  # 12 items
    with make_server(all_steps, config=small_table()) as server:
        with pytest.raises(ValueError, match=r"at least 12 items, but the smallest table holds 10; .*allow_eviction"):
            ingest(all_steps, server.address, "items")
        info = server.client.server_info(timeout=10)["items"]
        assert (info.current_size, info.rate_limiter_info.insert_stats.completed) == (0, 0)
        assert ingest(all_steps[:1], server.address, "items").table_sizes == {"items": 6}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small_table(), None),
        (TableConfig("items"), None),  # It has no settings.
        (TableConfig("items", Selector("uniform"), max_size=99), "max_size of table 'items' must be .*, got 99"),
        (TableConfig("items", Selector("fifo"), max_size=10), "sampler of table 'items' must be .*, got fifo"),
        (small_table(rate_limiter=RateLimiter(size=2)), "rate_limiter of table 'items' must be .*, got min_size:2"),
    ],
)
def test_settings_that_a_server_table_does_not_have_raise(config, message):
    all_steps = [episode(3, terminal=True)]
    with make_server(all_steps, config=small_table()) as server:
        with contextlib.nullcontext() if message is None else pytest.raises(ValueError, match=message):
            ingest(all_steps, server.address, config)
        assert server.client.server_info(timeout=10)["items"].current_size == (2 if message is None else 0)


def test_allowed_eviction_warns():
    all_steps = [episode(7, terminal=True, start=10 * n) for n in range(2)]
    with make_server(all_steps, config=small_table()) as server:
        with pytest.warns(
            RuntimeWarning, match="has 12 items, but the smallest table holds 10: at least 2 of them will be evicted"
        ):
            report = ingest(all_steps, server.address, "items", options=IngestOptions(allow_eviction=True))
        assert (report.items, report.table_sizes, len(report.warnings)) == (12, {"items": 10}, 1)
        assert ("table sizes", "items: 10 items") in report.facts()


def test_each_warning_and_note_is_one_python_warning(tmp_path):
    now = np.stack([np.arange(3.0), np.full(3, 5.0)], 1)
    log = {"observations": now, "actions": np.arange(3), "rewards": np.ones(3), "terminated": False}
    transformed, statistics = apply_transforms(load([log, log]), [NormalizeObservations()])
    source = replace(transformed, warnings=("look here",))
    with make_server(source) as server:
        # The second run finds a complete directory.
        for destination in (tmp_path / "out", tmp_path / "out", server.address):
            with pytest.warns(IngestWarning) as caught:
                report = ingest(source, destination, "items")
            messages = [str(warning.message) for warning in caught]
            assert messages == [*report.warnings, *report.notes] == [*report.warnings, *report.as_dict()["notes"]]
            assert {warning.filename for warning in caught} == {__file__}
            assert messages[0] == "look here" and messages[1].startswith(
                "the last transitions of 2 truncated episodes are left out"
            )
            assert messages[2:] == ["step['observation'] is constant at [1] and was normalised to zeros there"]
            assert report.as_dict()["statistics"] == statistics
            assert ("changed", "(observation - mean) / (std + 0.001)") in report.facts()


def test_too_many_items_raise_when_an_adder_repeats_rows():
    @dataclass(frozen=True)
    class RepeatedWindows:
        def __call__(self, episode):
            items = TrajectoryWindows()(episode)
            starts = np.repeat(items.starts, 2)
            return Items(items.columns, starts, np.full(len(starts), 2))

        def item_spec(self, step_spec):
            return TrajectoryWindows().item_spec(step_spec)

    with make_server([episode(7, terminal=True)], config=small_table()) as server:
        with pytest.raises(ValueError, match="at least 12 items, but the smallest table holds 10"):
            ingest([episode(7, terminal=True)], server.address, "items", adder=RepeatedWindows())


def test_table_without_max_size_has_reverbs_maximum():
    with ReplayServer([TableConfig()]) as server:
        assert server.client.server_info(timeout=10)["replay"].max_size == 2**31 - 1


def test_repeated_destinations_raise_before_anything_is_written(tmp_path):
    episodes = [episode(3, terminal=True), episode(4, terminal=True)]
    with pytest.raises(ValueError, match=f"the destinations must differ, but {tmp_path}/a is named twice"):
        ingest(episodes, [tmp_path / "a", str(tmp_path / "a")], TableConfig("t"))
    with pytest.raises(ValueError, match="the destinations must differ, but localhost:1 is named twice"):
        ingest(episodes, ["localhost:1", 1], "t")
    assert not list(tmp_path.iterdir())
