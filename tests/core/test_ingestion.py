"""Into Reverb and back: equal bit for bit; what is refused is refused before the first item."""

import json
import socket
from dataclasses import dataclass, replace

import numpy as np
import pytest
import reverb
import tree
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from reference_impls import assert_equal_nests, episode, episodes, naive_trajectories, read_items, rlds_dataset
from tf_agents.replay_buffers.reverb_replay_buffer import ReverbReplayBuffer
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb import IngestWarning, create_trajectory_data_spec
from rlds2reverb._encoding.encoder import Encoder
from rlds2reverb._server.clients import connect
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb._writing.destination import TransferState
from rlds2reverb._writing.directory_destination import DirectoryDestination
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import (
    CheckpointError,
    InvalidEpisodeError,
    ServerUnavailableError,
    SourceError,
    SpecMismatchError,
)
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.items import Items
from rlds2reverb.sources import Source, load
from rlds2reverb.sources.transforms import CastFloats, CutAtTerminal, NormalizeObservations, apply_transforms
from rlds2reverb.specs import ArraySpec
from rlds2reverb.tables import RateLimiter, Selector, TableConfig, item_signature
from rlds2reverb.trajectories import trajectory_columns, trajectory_spec
from rlds2reverb.trajectory_items import TrajectoryWindows

ONCE = TableConfig("items", Selector("fifo"), Selector("fifo"), max_times_sampled=1)


def served(source, length=2, config=ONCE, signature=True):
    spec = trajectory_spec(load(source).step_spec)
    return ReplayServer([config], item_signature(spec, length) if signature else None)


def stored(source, *, length=2, stride=1, **options):
    with served(source, length) as server:
        report = ingest(source, server.address, "items", adder=TrajectoryWindows(length, stride), **options)
        return report, read_items(server.address, "items")


def windows(episodes_columns, length, stride):
    """All windows of an episode's rows, by the double loop."""
    for columns in episodes_columns:
        for begin in range(0, len(columns.step_type) - length + 1, stride):
            yield tree.map_structure(lambda column, b=begin: column[b : b + length], columns)


# --- equal bit for bit

EVERYTHING = [
    ("d4rl/invertedpendulum_random-v2.hdf5", 300),
    ("d4rl/pendulum_mixed-v2.hdf5", 4),
    ("tfds_fake/d4rl_adroit_door/door-human-v0.hdf5", None),
    ("tfds_fake/d4rl_antmaze/antmaze-umaze-v0.hdf5", None),
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
    ("rlds_prepared/d4rl_antmaze/umaze-v0/1.1.1", None),
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
@pytest.mark.parametrize(("name", "at_most"), EVERYTHING)
def test_every_data_set_comes_back_bit_for_bit(data, name, at_most):
    source = load(data / name)
    if "robomimic_ph/lift_ph" in name:  # success is marked on several steps
        source, _ = apply_transforms(source, [CutAtTerminal()])
    some = [e.steps for e, _ in zip(source, range(at_most or 10**9), strict=False)]
    report, items = stored(some if at_most else source)
    wanted = list(windows(map(trajectory_columns, some), 2, 1))
    assert report.items == len(items) == len(wanted) > 0
    assert report.steps == sum(len(steps["is_first"]) for steps in some)
    for got, want in zip(items, wanted, strict=True):
        assert_equal_nests(got, want)


@given(episodes(), st.integers(1, 4), st.integers(1, 3))
@examples(25)
def test_any_episodes_come_back_bit_for_bit(many, length, stride):
    report, items = stored(many, length=length, stride=stride)
    wanted = list(windows(map(trajectory_columns, many), length, stride))
    assert len(items) == len(wanted) == report.items
    for got, want in zip(items, wanted, strict=True):
        assert_equal_nests(got, want)


def test_the_items_are_those_of_the_naive_loop():
    many = [episode(3, terminal=True), episode(2, terminal=False, start=30)]
    _, items = stored(many, length=1)
    for got, want in zip(items, naive_trajectories(many, "product"), strict=True):
        for name, value in want.items():
            np.testing.assert_array_equal(getattr(got, name)[0], value)


def test_several_tables_get_the_same_items():
    spec = item_signature(trajectory_spec(load([episode(3, terminal=True)]).step_spec), 2)
    configs = [ONCE, TableConfig("more", Selector("fifo"), max_times_sampled=1)]
    with ReplayServer(configs, spec) as server:
        report = ingest([episode(3, terminal=True)], server.address, ["items", "more"])
        one, two = read_items(server.address, "items"), read_items(server.address, "more")
    assert (report.tables, report.items) == (("items", "more"), 2)
    for got, want in zip(one, two, strict=True):
        assert_equal_nests(got, want)


def test_the_priority_is_the_one_asked_for():
    with served([episode(3, terminal=True)], config=TableConfig("items")) as server:
        ingest([episode(3, terminal=True)], server.client, "items", priority=2.5)
        sample = next(iter(server.client.sample("items", emit_timesteps=False)))
    assert sample.info.priority == 2.5


# --- the report


def test_the_report_counts_what_happened(data):
    source = load(data / "malformed/hdf5/unclosed_tail.hdf5")
    report, items = stored(source)
    assert (report.episodes, report.unterminated, report.episodes_too_short) == (4, 1, 0)
    assert report.bytes == sum(e.num_bytes for e in source)
    assert set(report.seconds) == {"check", "read", "convert", "write"} and report.steps_per_second > 0
    as_dict = json.loads(json.dumps(report.as_dict()))
    assert as_dict["items"] == len(items) and as_dict["source"] == "unclosed_tail.hdf5"


def test_episodes_too_short_for_an_item_are_counted():
    report, items = stored([episode(1, terminal=False), episode(5, terminal=True)], length=3)
    assert (report.episodes_too_short, report.items, len(items)) == (1, 3, 3)


def test_progress_is_told_for_each_episode():
    told = []
    stored(
        [episode(2, terminal=True), episode(3, terminal=True)], progress=lambda stage, e: told.append((stage, e.index))
    )
    assert told == [("check", 0), ("check", 1), ("write", 0), ("write", 1)]


# --- invalid data: fault 7 of the reference


def invalid():
    """Four episodes of which two are invalid in ways that the reference takes silently."""
    nan, outside = episode(3, terminal=True), episode(3, terminal=True)
    nan["reward"] = np.array([1, np.nan, 1], np.float32)
    outside["discount"] = np.array([1, 1.5, 1], np.float32)
    return [episode(2, terminal=True), nan, outside, episode(4, terminal=False)]


def test_fault_7_invalid_episodes_are_an_error_and_nothing_is_written():
    with served(invalid()) as server:
        with pytest.raises(
            InvalidEpisodeError, match=r"step\['reward'\] holds NaN. \(episode 1, step 1, field reward\)"
        ):
            ingest(invalid(), server.address, "items")
        assert server.client.server_info(timeout=10)["items"].rate_limiter_info.insert_stats.completed == 0


def test_fault_7_invalid_episodes_are_skipped_or_kept_on_request_and_counted():
    report, items = stored(invalid(), on_invalid="skip_episode")
    assert (report.episodes, report.skipped_episodes, len(items)) == (2, 2, 4)
    assert [(p.episode, p.step, p.field) for p in report.problems] == [(1, 1, "reward"), (2, 1, "discount")]
    report, items = stored(invalid(), on_invalid="keep")
    assert (report.episodes, report.kept_problems, len(items)) == (4, 2, 8)


def test_an_episode_without_steps_is_skipped_and_counted(data):
    source = load(data / "malformed/rlds/zero_length_episode")
    for on_invalid in ("skip_episode", "keep"):
        report, _ = stored(source, on_invalid=on_invalid)
        assert (report.episodes, report.skipped_episodes) == (2, 1)


def test_what_no_table_can_hold_is_left_out_even_where_problems_are_kept():
    uneven, other = episode(3, terminal=True), episode(3, terminal=True)
    uneven["reward"] = uneven["reward"][:2]
    other["reward"] = other["reward"].astype(np.float64)
    report, items = stored([episode(2, terminal=True), uneven, other], on_invalid="keep")
    assert (report.episodes, report.skipped_episodes, len(items)) == (1, 2, 1)
    assert [problem.episode for problem in report.problems] == [1, 2]


def test_an_episode_of_another_spec_is_refused_before_anything_is_written():
    other = episode(3, terminal=True)
    other["reward"] = other["reward"].astype(np.float64)
    with served([episode(2, terminal=True)]) as server:
        with pytest.raises(InvalidEpisodeError, match=r"step\['reward'\] is float64 \[\], the first episode"):
            ingest([episode(2, terminal=True), other], server.address, "items")
        assert server.client.server_info(timeout=10)["items"].current_size == 0


# --- refused before the first item


def test_a_table_of_another_signature_is_refused(data):
    path = data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5"
    as_float32, _ = apply_transforms(load(path), [CastFloats()])
    with served(as_float32) as server:
        message = r"item\['observation'\] is float64 \[2, 11\], but table 'items' expects float32 \[2, 11\]; cast"
        with pytest.raises(SpecMismatchError, match=message):
            ingest(path, server.address, "items")
        assert server.client.server_info(timeout=10)["items"].current_size == 0
        assert ingest(as_float32, server.address, "items").items == 49


def test_a_table_without_a_signature_takes_anything():
    with served([episode(2, terminal=True)], signature=False) as server:
        assert ingest([episode(2, terminal=True, nested=True)], server.address, "items").items == 1


def test_the_replay_buffer_of_tf_agents_reads_what_was_written(data):
    """A table as its users build it: with the spec of RLDS data, of any length; sampled as a TF-Agents agent does."""
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


def test_a_missing_table_is_named():
    with served([episode(2, terminal=True)]) as server:
        with pytest.raises(ValueError, match="the server has no table 'other'; it has items"):
            ingest([episode(2, terminal=True)], server.address, "other")


def test_strings_are_refused():
    steps = episode(2, terminal=True)
    steps["observation"] = {"text": np.array([b"a", b"b"], object), "state": steps["observation"]}
    with pytest.raises(
        SpecMismatchError, match=r"item\['observation'\]\['text'\] holds strings, which our tables do not take; leave"
    ):
        stored([steps])


@pytest.mark.parametrize("priority", [-1, float("nan"), float("inf"), 1e308, 1.1e12])
def test_priorities_that_harm_a_table_never_leave_the_client(priority):
    message = r"the priority of item 0 of episode 0 is .*, expected a finite number in \[0, 1e\+12\]"
    for given_as in (priority, lambda episode, items: priority):
        with pytest.raises(ValueError, match=message):
            stored([episode(2, terminal=True)], priority=given_as)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_invalid": "ignore"}, "on_invalid is 'ignore', expected one of 'error', 'skip_episode', 'keep'"),
        ({"timeout_secs": float("inf")}, "timeout_secs is inf, expected seconds above 0"),
        ({"timeout_secs": float("nan")}, "timeout_secs is nan"),
        ({"tables": []}, r"tables are \[\], expected at least one, each once"),
        ({"tables": ["a", "a"]}, "expected at least one, each once"),
        ({"layout": "rows"}, "layout is 'rows', expected one of 'columns', 'packed'"),
        ({"options": {"writer": "own"}}, "writer is 'own', expected one of 'bulk', 'public'"),
        ({"options": {"chunk_length": 0}}, "chunk_length must be an integer >= 1, got 0"),
        ({"options": {"writer": "public"}, "layout": "packed"}, "the public writer writes to servers only"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        if "options" in options:
            options = {**options, "options": IngestOptions(**options["options"])}
        ingest([episode(2, terminal=True)], "localhost:1", **options)


@pytest.mark.parametrize("address", ["nonsense", "host:", ":80", "host:99999", "host:x"])
def test_addresses_have_to_be_host_and_port(address):
    with pytest.raises(ValueError, match="expected host:port such as localhost:8000"):
        connect(address)


def test_a_server_is_taken_in_any_form():
    server = reverb.Server([TableConfig("items").build()], port=None)
    for form in (server, server.localhost_client(), server.port, str(server.port), f"localhost:{server.port}"):
        assert ingest([episode(2, terminal=True)], form, "items").items == 1
    server.stop()


# --- deadlines


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.timeout(60)
def test_no_server_is_an_error_within_the_time_out():
    with pytest.raises(ServerUnavailableError, match="no Reverb server answered at localhost:.* within 1 s; start it"):
        ingest([episode(2, terminal=True)], free_port(), timeout_secs=1)


def test_a_rate_limiter_that_blocks_is_an_error_that_says_so():
    limiter = RateLimiter("sample_to_insert_ratio", 3, samples_per_insert=1.0, error_buffer=2.0)
    with served([episode(9, terminal=True)], config=TableConfig("items", rate_limiter=limiter)) as server:
        message = r"waited 1 s for localhost:.* its rate limiter blocks: table 'items' has \d inserted, 0 sampled"
        with pytest.raises(ServerUnavailableError, match=message):
            ingest([episode(60, terminal=True)], server.address, "items", timeout_secs=1)


def test_a_source_that_breaks_in_the_middle_says_so(data):
    with served(data / "malformed/rlds/ok_control") as server:
        with pytest.raises(SourceError, match="is damaged at episode 1"):
            ingest(data / "malformed/rlds/truncated_tfrecord", server.address, "items")
        assert server.client.server_info(timeout=10)["items"].current_size == 0


def test_an_rlds_data_set_goes_the_same_way():
    many = [episode(4, terminal=True, nested=True), episode(2, terminal=False, nested=True)]
    from_dataset, from_list = stored(rlds_dataset(many))[1], stored(many)[1]
    for got, want in zip(from_dataset, from_list, strict=True):
        assert_equal_nests(got, want)


# --- running again


@dataclass
class Ending:
    """The last rows of each episode; another length has the same name."""

    length: int

    def __repr__(self):
        return "Ending"

    def __call__(self, one):
        rows = trajectory_columns(one.steps)
        begin = max(0, len(rows.step_type) - self.length)
        return Items(rows, np.array([begin]), np.array([len(rows.step_type) - begin]))

    def item_spec(self, step_spec):
        return item_signature(trajectory_spec(step_spec), None)


def test_a_data_set_that_grew_does_not_go_into_a_directory_that_is_complete(tmp_path):
    growing = [episode(3, terminal=True), episode(4, terminal=True)]
    source = Source("log", "memory", lambda: (Episode(steps, at) for at, steps in enumerate(growing)))
    assert ingest(source, tmp_path / "out").items == 5
    growing.append(episode(5, terminal=True))
    source = Source("log", "memory", lambda: (Episode(steps, at) for at, steps in enumerate(growing)))
    with pytest.raises(CheckpointError, match="out is complete, and the data set has more episodes than it"):
        ingest(source, tmp_path / "out")


def test_an_adder_of_the_same_name_that_makes_other_items_is_told_apart(tmp_path):
    many = [episode(9, terminal=True)]
    ingest(many, tmp_path / "out", adder=Ending(2))
    with pytest.raises(
        CheckpointError, match="out exists already, written with other arguments: the first episode gave other items"
    ):
        ingest(many, tmp_path / "out", adder=Ending(5))


def test_a_directory_without_items_is_not_written(tmp_path):
    with pytest.raises(CheckpointError, match="would have no items: all episodes are shorter than an item"):
        ingest([episode(2, terminal=True)], tmp_path / "out", adder=TrajectoryWindows(5))
    assert not (tmp_path / "out").exists()


def test_a_directory_is_not_touched_by_looking_at_it(tmp_path):
    (tmp_path / "others").mkdir()
    (tmp_path / "others/note.txt").touch()
    for attempt in (
        lambda: ingest([episode(2, terminal=True)], tmp_path / "others"),
        lambda: ReplayServer(None, data=tmp_path / "others"),
    ):
        with pytest.raises(CheckpointError):
            attempt()
        assert [path.name for path in (tmp_path / "others").iterdir()] == ["note.txt"]


def test_forgetting_a_run_forgets_its_journal(tmp_path):
    """A run that begins again and is killed before its first part is over leaves nothing of the one before."""
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
                writer._end_part(TransferState(1, "", 0, 0))
    assert not (partial / "journal.json").exists()
    assert ingest(source, tmp_path / "out").items == 2


def test_a_directory_of_two_tables_has_both_as_they_were_asked_for(tmp_path):
    configs = [TableConfig("small", Selector("uniform"), max_size=9), TableConfig("heap", Selector("max_heap"))]
    ingest([episode(9, terminal=True)], tmp_path / "out", configs)
    with ReplayServer(None, data=tmp_path / "out") as server:
        infos = server.client.server_info(timeout=10)
    assert {name: (info.max_size, info.current_size) for name, info in infos.items()} == {
        "small": (9, 8),
        "heap": (2**31 - 1, 8),
    }
    with pytest.raises(
        ValueError, match="gives 11 items or more, and the smallest table holds 9; give a larger max_size"
    ):
        ingest([episode(12, terminal=True)], tmp_path / "other", configs)
    assert not list(tmp_path.glob("other*"))


# --- more items than a table holds


def small_table(**limiter):
    return TableConfig("items", Selector("uniform"), max_size=10, **limiter)


def test_more_items_than_a_table_holds_are_an_error_before_the_first():
    many = [episode(7, terminal=True, start=10 * n) for n in range(2)]  # 12 items
    with served(many, config=small_table()) as server:
        with pytest.raises(
            ValueError, match=r"gives 12 items or more, and the smallest table holds 10; .*allow_eviction"
        ):
            ingest(many, server.address, "items")
        info = server.client.server_info(timeout=10)["items"]
        assert (info.current_size, info.rate_limiter_info.insert_stats.completed) == (0, 0)
        assert ingest(many[:1], server.address, "items").table_sizes == {"items": 6}


def test_eviction_is_counted_where_it_is_allowed():
    many = [episode(7, terminal=True, start=10 * n) for n in range(2)]
    with served(many, config=small_table()) as server:
        with pytest.warns(
            RuntimeWarning, match="gives 12 items and the smallest table holds 10: 2 or more of them will be"
        ):
            report = ingest(many, server.address, "items", options=IngestOptions(allow_eviction=True))
        assert (report.items, report.table_sizes, len(report.warnings)) == (12, {"items": 10}, 1)
        assert ("now", "items: 10 items") in report.facts()


def test_warnings_and_notes_are_python_warnings_once_each(tmp_path):
    now = np.stack([np.arange(3.0), np.full(3, 5.0)], 1)
    log = {"observations": now, "actions": np.arange(3), "rewards": np.ones(3), "terminated": False}
    transformed, statistics = apply_transforms(load([log, log]), [NormalizeObservations()])
    source = replace(transformed, warnings=("look here",))
    with served(source) as server:
        for destination in (tmp_path / "out", tmp_path / "out", server.address):  # the second finds all there
            with pytest.warns(IngestWarning) as caught:
                report = ingest(source, destination, "items")
            told = [str(warning.message) for warning in caught]
            assert told == [*report.warnings, *report.notes] == [*report.warnings, *report.as_dict()["notes"]]
            assert {warning.filename for warning in caught} == {__file__}
            assert told[0] == "look here" and told[1].startswith("2 transitions are left out")
            assert told[2:] == ["step['observation'] is constant at [1], and is normalised to zeros there"]
            assert report.as_dict()["statistics"] == statistics
            assert ("changed", "(observation - mean) / (std + 0.001)") in report.facts()


def test_an_adder_that_makes_more_items_than_rows_does_not_fill_a_table_in_silence():
    @dataclass(frozen=True)
    class Twice:
        def __call__(self, one):
            items = TrajectoryWindows()(one)
            twice = np.repeat(items.starts, 2)
            return Items(items.columns, twice, np.full(len(twice), 2))

        def item_spec(self, step_spec):
            return TrajectoryWindows().item_spec(step_spec)

    with served([episode(7, terminal=True)], config=small_table()) as server:
        with pytest.raises(ValueError, match="gives 12 items or more, and the smallest table holds 10"):
            ingest([episode(7, terminal=True)], server.address, "items", adder=Twice())


def test_a_table_without_a_size_holds_more_than_a_million(tmp_path):
    with ReplayServer([TableConfig()]) as server:
        assert server.client.server_info(timeout=10)["replay"].max_size == 2**31 - 1
