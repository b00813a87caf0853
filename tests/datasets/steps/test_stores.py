"""Stores: what they give back, that interruptions and processes leave no trace, and what is refused."""

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import internals
import numpy as np
import pytest
from properties import mark_slow_except
from reference_impls import assert_equal_nests, episode

from rlds2reverb import CorruptFileError, Source, SourceError, SpecMismatchError, batches, load
from rlds2reverb.adders import NStep, Transitions, Windows
from rlds2reverb.cli import run
from rlds2reverb.datasets.steps import step_columns, stores as store
from rlds2reverb.datasets.steps.item_index import ItemIndex
from rlds2reverb.datasets.steps.layout import EPISODE_RECORD, Layout, fill_structure
from rlds2reverb.datasets.steps.step_columns import MemoryColumns
from rlds2reverb.datasets.steps.stores import MANIFEST, build_store, make_store, open_columns, verify_store
from rlds2reverb.errors import ErrorFinding, InvalidEpisodeError, ResourceInUseError, StorageFullError
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.specs import leaves

#: Datasets with nested fields, several dtypes, text, images, stacked frames, and attributes of episodes.
SOURCES = {
    "D4RL": ("d4rl/hopper_medium-v2.hdf5", {}),
    "D4RL that drops a row": ("d4rl/invertedpendulum_random-v2.hdf5", {}),
    "Minari, nested and seeded": ("minari/classic/pendulum-dict/dev-v0", {}),
    "LeRobot, timestamps": ("formats/lerobot/v2.1/c1", {}),
    "RLDS, encoded images and text": ("formats/rlds/a4/nested_cameras/1.0.0", {"image_decoding": False}),
    "Atari, stacked frames": ("formats/atari/replay_logs", {"frame_stack": 4}),
}
BUILD = (
    "import sys; from pathlib import Path; from rlds2reverb import load; from rlds2reverb.datasets.steps import stores as store; "
    "store.MIN_PART_ROWS = 1; store.build_store(load(sys.argv[1]), Path(sys.argv[2]), num_workers=int(sys.argv[3]))"
)


def to_bytes(column):
    values = [value if isinstance(value, bytes) else value.encode() for value in column.tolist()]
    return np.array([*values, None], object)[:-1]


def assert_same_episodes(got, expected):
    for one, other in zip(got, expected, strict=True):
        for (path, column), (expected_path, values) in zip(leaves(one.steps), leaves(other.steps), strict=True):
            values = to_bytes(values) if values.dtype == object else values
            assert path == expected_path and column.dtype == values.dtype
            np.testing.assert_array_equal(column, values)
        for name in ("unterminated", "dropped_last_transition", "discontinuities", "seed", "unknown_final_observation"):
            assert getattr(one, name) == getattr(other, name)
        np.testing.assert_array_equal(one.timestamps, other.timestamps)
        assert_equal_nests(one.metadata, other.metadata)


def hash_files(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def in_memory(episodes):
    steps = MemoryColumns(Layout.of_steps(episodes[0].steps))
    for one in episodes:
        steps.append(EpisodeBatch([one]))
    return steps.finish()


@pytest.mark.parametrize(
    "name", mark_slow_except(SOURCES.keys() - {"D4RL that drops a row", "Atari, stacked frames"}, SOURCES)
)
def test_store_gives_back_the_episodes(tmp_path, monkeypatch, data, name):
    path, options = SOURCES[name]
    source = load(data / path, **options)
    expected = list(source.read())
    build_store(source, tmp_path / "store", num_workers=0)
    stored = load(tmp_path / "store", **{key: value for key, value in options.items() if key == "image_decoding"})
    assert_same_episodes(stored.read(), expected)
    assert_same_episodes(stored.read(1, 2), expected[1:2])
    assert (stored.num_episodes, stored.metadata, stored.env_spec) == (
        len(expected),
        {name: value for name, value in source.metadata.items() if not isinstance(value, (list, dict, tuple))},
        source.env_spec,
    )
    monkeypatch.setattr(step_columns, "PART_BYTES", 20_000)
    columns = in_memory(expected)
    assert_same_episodes(columns.read_episodes(image_decoding=False), expected)
    verify_store(tmp_path / "store")
    # Rows in any order, from several parts.
    rows = np.random.default_rng(0).permutation(len(columns))[:200]
    for (path, got), (_, part) in zip(
        leaves(columns.take(rows)), leaves(open_columns(tmp_path / "store").take(rows)), strict=True
    ):
        np.testing.assert_array_equal(got, part, err_msg=str(path))


def test_images_are_decoded_when_they_are_read(tmp_path, data):
    path = data / "rlds/physics_rlds/pendulum_pixels/1.0.0"
    build_store(load(path, split="train[:2]", image_decoding=False), tmp_path / "store", num_workers=0)
    decoded = load(path, split="train[:2]").read()
    assert_same_episodes(load(tmp_path / "store").read(), decoded)  # PNG, which is lossless.
    hidden = next(open_columns(tmp_path / "store").read_episodes(with_images=False))
    assert (
        hidden.steps["observation"]["image"].shape == (101, 48, 48, 3)
        and not hidden.steps["observation"]["image"].any()
    )
    assert hidden.steps["observation"]["state"].any()


def test_stacked_frames_are_stored_once(data):
    episodes = {count: list(load(data / "formats/atari/replay_logs", frame_stack=count).read()) for count in (1, 4)}
    single, stacked = (in_memory(episodes[count]) for count in (1, 4))
    assert single.num_bytes < stacked.num_bytes < 1.1 * single.num_bytes
    for steps, count in ((single, 1), (stacked, 4)):
        got, expected = steps.take(np.arange(2, 6)), episodes[count][0].steps["observation"][2:6]
        assert np.array_equal(got["observation"], expected)


@pytest.mark.slow
def test_files_are_the_same_for_any_number_of_processes(tmp_path, monkeypatch, data):
    monkeypatch.setattr(store, "MIN_PART_ROWS", 2_000)
    source, progress = load(data / "d4rl/hopper_medium-v2.hdf5"), []
    for workers in (0, 2):
        path = tmp_path / str(workers)
        build_store(source, path, num_workers=workers, on_progress=lambda *counts: progress.append(counts))
        assert progress[-1] == (32, 32)
    assert hash_files(tmp_path / "0") == hash_files(tmp_path / "2")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_builds_continue_with_the_same_bytes(tmp_path, monkeypatch, data, workers):
    monkeypatch.setattr(store, "MIN_PART_ROWS", 1)
    random, path = np.random.default_rng(workers), data / "d4rl/hopper_medium-v2.hdf5"
    build_store(load(path), tmp_path / "whole", num_workers=0)
    num_kills = 0
    for attempt in range(100):
        command = [sys.executable, "-c", BUILD, str(path), str(tmp_path / "store"), str(workers)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            process.wait(random.uniform(0.3, 1.5) if num_kills < 30 else 60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            num_kills += 1
        if (tmp_path / "store" / MANIFEST).exists() and num_kills < 30:  # Another round.
            (tmp_path / "store").rename(tmp_path / f"done{attempt}")
        elif num_kills >= 30:
            break
    deadline = time.monotonic() + 60
    while not (tmp_path / "store" / MANIFEST).exists():
        assert time.monotonic() < deadline
        subprocess.run([sys.executable, "-c", BUILD, str(path), str(tmp_path / "store"), str(workers)], check=False)
    for folder in tmp_path.glob("[sd]*"):
        assert hash_files(folder) == hash_files(tmp_path / "whole")


def test_build_continues_after_the_last_complete_episode(tmp_path, monkeypatch, data):
    monkeypatch.setattr(store, "MIN_PART_ROWS", 2_000)
    source = load(data / "d4rl/hopper_medium-v2.hdf5")
    build_store(source, tmp_path / "whole", num_workers=0)
    build_store(source, tmp_path / "store", num_workers=0)
    manifest = json.loads((tmp_path / "store" / MANIFEST).read_text())
    plan = {name: manifest[name] for name in ("version", "identity", "layout", "ranges")}
    # The state of a process that was killed within an episode: some files have bytes without a record.
    save_json(tmp_path / "store/plan.json", plan)
    (tmp_path / "store" / MANIFEST).unlink()
    part = tmp_path / "store/part-0003"
    (part / "part.json").unlink()
    (part / "episodes").write_bytes(b"torn")
    with (part / "rows").open("ab") as file:
        file.write(b"more")
    with pytest.raises(SourceError, match="is no complete store"):
        load(tmp_path / "store")
    build_store(source, tmp_path / "store", num_workers=0)
    assert hash_files(tmp_path / "store") == hash_files(tmp_path / "whole")


def test_other_data_and_damage_are_refused(tmp_path, data):
    source = load(data / "d4rl/hopper_medium-v2.hdf5")
    build_store(source, tmp_path / "store", num_workers=0)
    other = load(data / "d4rl/pendulum_mixed-v2.hdf5")
    with pytest.raises(SourceError, match="is a store of hopper_medium-v2.hdf5 that does not match pendulum_mixed"):
        build_store(other, tmp_path / "store")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.pdf").write_text("mine")
    with pytest.raises(SourceError, match="is neither a store nor empty"):
        build_store(source, tmp_path / "full")
    rows = tmp_path / "store/part-0000/rows"
    content = bytearray(rows.read_bytes())
    content[5] ^= 1
    rows.write_bytes(content)
    with pytest.raises(CorruptFileError, match="rows is damaged"):
        verify_store(tmp_path / "store")
    rows.write_bytes(content[:-1])
    with pytest.raises(CorruptFileError, match="rows is missing or truncated"):
        load(tmp_path / "store")


def test_episodes_of_other_fields_are_refused(tmp_path):
    different = [episode(3, terminal=True), {**episode(3, terminal=True), "extra": np.zeros(4)}]
    with pytest.raises(SpecMismatchError, match=r"episode 1 has the fields .*step\['extra'\]"):
        build_store(load(different), tmp_path / "store")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(
            InvalidEpisodeError([ErrorFinding(2, 1, "reward", "must be finite")]), marks=pytest.mark.slow, id="errors"
        ),
        pytest.param(SourceError("longer than a pipe" * 9999), id="long"),
    ],
)
def test_errors_of_processes_reach_the_caller(error, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MIN_PART_ROWS", 1)
    source = load([episode(3, terminal=True)] * 4)
    source.kind = "d4rl"
    read = source.read

    def read_some(first=0, stop=None):
        if first == 2:
            raise error
        return read(first, stop)

    source.read, source.count = read_some, lambda: 4
    with pytest.raises(type(error)) as caught:
        build_store(source, tmp_path / "store", num_workers=2)
    assert str(caught.value) == str(error)


def test_build_continues_after_the_disk_was_full(tmp_path, monkeypatch, data):
    source, write, written = load(data / "d4rl/hopper_medium-v2.hdf5"), getattr(store, internals.WRITE_ALL), []

    def write_some(file, array):
        written.append(array.nbytes)
        if sum(written) > 200_000:
            raise OSError(errno.ENOSPC, "no space")
        write(file, array)

    monkeypatch.setattr(store, internals.WRITE_ALL, write_some)
    with pytest.raises(StorageFullError, match="existing data are kept"):
        build_store(source, tmp_path / "store", num_workers=0)
    monkeypatch.undo()
    build_store(source, tmp_path / "store", num_workers=0)
    build_store(source, tmp_path / "whole", num_workers=0)
    assert hash_files(tmp_path / "store") == hash_files(tmp_path / "whole")


def test_one_process_at_a_time_builds_a_store(tmp_path, data):
    source = load(data / "d4rl/hopper_medium-v2.hdf5")

    def build_again(stored, total):
        with pytest.raises(ResourceInUseError, match="is in use by process"):
            build_store(source, tmp_path / "store", num_workers=0)

    build_store(source, tmp_path / "store", num_workers=0, on_progress=build_again)


@pytest.mark.parametrize("kind", ["sum", "attributes"])
def test_damaged_records_are_noticed_when_a_store_is_opened(tmp_path, data, kind):
    build_store(load(data / "formats/lerobot/v2.1/c1"), tmp_path / "store", num_workers=0)
    file = tmp_path / "store/part-0000" / ("episodes" if kind == "sum" else "attributes")
    if kind == "sum":
        records = np.fromfile(file, EPISODE_RECORD)
        records["num_steps"][:2] += [-1, 1]
        records.tofile(file)
    else:
        file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    for read in (load, lambda path: batches(path, 2)):
        with pytest.raises(CorruptFileError, match=f"{file.name} is damaged"):
            read(tmp_path / "store")


@pytest.mark.parametrize("name", ["rows", "column-05-frames"])
def test_file_that_is_truncated_while_it_is_mapped_is_an_error(tmp_path, data, monkeypatch, name):
    monkeypatch.setattr(step_columns, "CHECK_SECS", 0)
    source = load(data / "formats/vd4rl/cartpole_swingup/64px")
    path = make_store(source, tmp_path)
    (truncated,) = path.glob(f"part-0000/{name}" if name == "rows" else "part-0000/*-frames")
    read = iter(batches(source, 2, store_dir=tmp_path, prefetch=0))
    next(read)
    os.truncate(truncated, 1)
    with pytest.raises(CorruptFileError, match=f"{truncated.name} was truncated while it was read"):
        next(read)


def test_sizes_of_mapped_files_are_compared_at_intervals(tmp_path, data, monkeypatch):
    columns = store.open_columns(make_store(load(data / "d4rl/pendulum_mixed-v2.hdf5"), tmp_path))
    times, sizes = iter([1.0, 1.04, 1.06]), []
    monkeypatch.setattr(step_columns, "time", SimpleNamespace(monotonic=lambda: next(times)))
    mapping = SimpleNamespace(size=lambda: sizes.append(1) or 1)
    monkeypatch.setattr(columns, internals.MAPPED, [SimpleNamespace(nbytes=1, _mmap=mapping)])
    for _ in range(3):
        columns.take(np.arange(2))
    assert len(sizes) == 2


def test_waiting_for_a_store_is_said_once_and_can_be_interrupted(tmp_path, data, monkeypatch, capsys):
    source, naps = load(data / "d4rl/pendulum_mixed-v2.hdf5"), []

    def wait(secs):
        naps.append(secs)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(store.time, "sleep", wait)
    path = make_store(source, tmp_path)
    (path / MANIFEST).rename(path / "plan.json")
    with FileLock(path / ".lock", ""), pytest.raises(KeyboardInterrupt):
        make_store(source, tmp_path)
    said = capsys.readouterr().err
    assert said == (
        f"waiting: the store {path} is in use by process {os.getpid()} on {socket.gethostname()}; wait until it is "
        "built, or stop this process\n"
    )
    make_store(source, tmp_path)
    assert len(naps) == 3


# --- items


@pytest.mark.parametrize("n", mark_slow_except([1, 5], [1, 2, 5]))
def test_transitions_are_those_of_the_adder(data, n):
    episodes = list(load(data / "d4rl/hopper_medium-v2.hdf5").read())[:8]
    for one in episodes[::2]:  # Discounts that do not tell where an episode is terminal.
        one.steps["discount"] = np.ones_like(one.steps["discount"])
    steps, cut = in_memory(episodes), Transitions(n, 0.97)
    is_used = np.arange(len(episodes)) % 3 != 1
    expected = [NStep(n, 0.97)(one).columns for one, used in zip(episodes, is_used, strict=True) if used]
    index = ItemIndex(steps, cut, is_used)
    got = cut.read(steps.take, index.find_places(np.arange(index.num_items)))
    assert index.num_items == sum(len(items["reward"]) for items in expected)
    for name, column in got.items():
        np.testing.assert_array_equal(column, np.concatenate([items[name] for items in expected]), err_msg=name)
    if n == 1:
        used = [one for one, is_kept in zip(episodes, is_used, strict=True) if is_kept]
        ends = [one.steps["discount"][:-1] * ~one.steps["is_terminal"][1:] for one in used]
        np.testing.assert_array_equal(got["discount"], np.concatenate(ends))


def test_windows_lie_within_an_episode(data):
    episodes = list(load(data / "d4rl/hopper_medium-v2.hdf5").read())[:3]
    steps, cut = in_memory(episodes), Windows(4, ("action", "is_last"))
    index = ItemIndex(steps, cut)
    items = cut.read(steps.take, index.find_places(np.arange(index.num_items)))
    expected = [one.steps["action"][start : start + 4] for one in episodes for start in range(one.num_steps - 3)]
    np.testing.assert_array_equal(items["action"], expected)
    assert not items["is_last"][:, :-1].any() and items["is_last"][:, -1].sum() == 3


# --- the command


def test_command_lists_and_prunes_stores(tmp_path, data, capsys):
    source = load(data / "d4rl/hopper_medium-v2.hdf5")
    for name in ("complete", "incomplete"):
        build_store(source, tmp_path / name, num_workers=0)
    (tmp_path / "incomplete" / MANIFEST).rename(tmp_path / "incomplete/plan.json")
    (tmp_path / "notes").mkdir()
    assert run(["store", str(tmp_path), "--verify", "--prune"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["store", "complete", "incomplete"]
    assert lines[1].endswith("complete") and lines[2].endswith("deleted")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["complete", "notes"]


def test_prune_deletes_only_files_of_stores(tmp_path, data, capsys):
    source = load(data / "d4rl/pendulum_mixed-v2.hdf5")
    for name in ("incomplete", "damaged"):
        build_store(source, tmp_path / name, num_workers=0)
    (tmp_path / "incomplete" / MANIFEST).rename(tmp_path / "incomplete/plan.json")
    (tmp_path / "incomplete/part-0000/notes.txt").write_text("mine")
    manifest = tmp_path / "damaged" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 7'))
    (tmp_path / "damaged/part-9999").symlink_to(tmp_path / "incomplete/part-0000")
    foreign = {"thesis/plan.json": "{}", "shop/store.json": '{"open": true}', "runs/part-0000/rows": "1"}
    foreign |= {"shards/store.json": "not JSON", "shards/part-0000/rows": "1"}
    for name, text in foreign.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    save_json(tmp_path / "runs/plan.json", {"seed_0": {"source": "d.hdf5"}})  # As `train --seeds` does.
    assert run(["store", str(tmp_path), "--prune"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["store", "damaged", "incomplete"]
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*foreign, "runs/plan.json", "incomplete/part-0000/notes.txt"}
    assert not manifest.exists()
    assert run(["inspect", str(tmp_path / "thesis")]) != 0 and "no dataset" in capsys.readouterr().err


def test_building_reads_a_function_once_for_the_plan(tmp_path):
    episodes, reads = [episode(3, terminal=True) for _ in range(3)], []

    def read():
        reads.append(True)
        return iter(load(episodes).read())

    make_store(Source("mine", "memory", read), tmp_path)
    assert len(reads) == 2  # For the plan, and for the store.


def test_structures_of_nested_tuples_are_filled_with_the_values_of_their_numbers():
    structure = {"a": (0, [2, {"b": 1}]), "c": 3}
    assert fill_structure(structure, [10, 11, 12, 13]) == {"a": (10, (12, {"b": 11})), "c": 13}
