"""Tests of LeRobot datasets: samples written by `lerobot`, damaged and hostile ones, and datasets that are written."""

import hashlib
import itertools
import json
import shutil
import sys

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from properties import mark_slow_except
from reference_impls import assert_equal_nests, episode as make_reference_episode

from rlds2reverb import load, write_dataset
from rlds2reverb.cli import run
from rlds2reverb.datasets.readers import hdf5
from rlds2reverb.datasets.writers import lerobot_writer
from rlds2reverb.errors import SourceError
from rlds2reverb.types.episodes import Episode

SAMPLES = ("v2.1/c1", "v2.1/c2", "v3.0/c2", "v3.0/c3")
#: Decoders of other versions differ by this much.
MAX_DECODER_ERROR = 2


@pytest.fixture
def samples(data):
    return data / "formats/lerobot"


@pytest.fixture(params=SAMPLES)
def sample(request, samples):
    return samples / request.param


@pytest.fixture
def copy(samples, tmp_path):
    """Returns a function that copies a sample."""

    def copy_sample(name):
        return shutil.copytree(samples / name, tmp_path / name.replace("/", "-"))

    return copy_sample


def find_column(read, name):
    """Returns the column of an episode that has the name of a column of LeRobot, or None."""
    if name == "next.reward":
        return read.steps["reward"]
    return next((column for path, column in read.columns if ".".join(path) == name), None)


def episode(length, *, terminal):
    """Returns steps whose discounts follow from the terminal flag."""
    steps = make_reference_episode(length, terminal=terminal)
    discount = np.ones(length, np.float32)
    discount[-2:] = 0 if terminal else 1
    steps["action"][-1] = steps["reward"][-1] = 0
    return {**steps, "discount": discount}


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# --- The samples


def test_sample_is_read_as_lerobot_reads_it(sample):
    expected = json.loads((sample / "expected.json").read_text())
    extra = [name for name in ("timestamp", "frame_index", "index", "next.success") if name in expected["features"]]
    source = load(sample, extra_fields=extra)
    assert (source.kind, source.num_episodes, source.num_rows) == ("lerobot", *(expected[f"num_{x}"] for x in ("episodes", "rows")))  # fmt: skip
    for read, want in zip(source, expected["episodes"], strict=True):
        end = "terminated" if read.is_terminal else "unknown" if read.unterminated else "truncated"
        assert end == want["ends"]
        assert read.dropped_last_transition == (end != "terminated")
        assert read.num_steps == want["rows"] + read.is_terminal
        assert [text.decode() for text in read.steps["task"][: want["rows"]]] == want["tasks_per_row"]
        compared = 0
        for name, fingerprint in want["fields"].items():
            column = find_column(read, name.removesuffix("#uint8_hwc"))
            is_image = column is not None and column.dtype == np.uint8
            if column is None or name == "task" or is_image != name.endswith("#uint8_hwc"):
                continue
            rows = np.ascontiguousarray(column[: want["rows"]])
            assert (list(rows.shape), rows.dtype.name) == (fingerprint["shape"], fingerprint["dtype"]), name
            compared += 1
            if "front" in name:  # A video: its pixels depend on the decoder.
                assert abs(int(rows.sum()) - fingerprint["sum"]) <= MAX_DECODER_ERROR * rows.size
            else:
                assert hashlib.sha256(rows.tobytes()).hexdigest() == fingerprint["sha256"], name
        assert compared >= 4


@pytest.mark.parametrize("name", ["v2.1/c2", "v3.0/c2"])
def test_frames_of_each_row_show_its_marker(samples, name):
    for read in load(samples / name):
        frames = read.steps["observation"]["images"]["front"]
        k, t = read.index, np.arange(len(frames))
        marker = np.stack([37 * t + 53 * k + 20, 91 * t + 17 * k + 5, 151 * t + 101 * k + 60], axis=1) % 256
        assert (
            np.abs(frames[:, 4:12, 4:12].mean(axis=(1, 2)) - marker).max() < 20
        )  # Neighbouring frames differ by 37 and more.


def test_ranges_and_pickles_have_the_episodes_of_an_iteration(sample):
    source = load(sample)
    episodes = list(source)
    assert source.count() == len(episodes)
    for first, stop in ((0, 2), (2, 3), (len(episodes) - 1, len(episodes)), (1, 1)):
        for read in (source.read, cloudpickle.loads(cloudpickle.dumps(source)).read):
            got = list(read(first, stop))
            assert [one.index for one in got] == list(range(first, stop))
            for one, other in zip(got, episodes[first:stop], strict=True):
                assert_equal_nests(one.steps, other.steps)


def test_done_alone_is_assumed_to_be_terminal_with_a_warning(samples):
    (warning,) = load(samples / "v2.1/c1").warnings
    assert "up to 6 episodes end with next.done" in warning and warning.endswith("or change it (done='truncated')")
    truncated = load(samples / "v2.1/c1", done="truncated")
    assert not truncated.warnings
    assert [(read.is_terminal, read.unterminated) for read in truncated] == [(False, i == 5) for i in range(7)]
    assert not load(samples / "v3.0/c3").warnings
    with pytest.raises(ValueError, match="done"):
        load(samples / "v3.0/c3", done="maybe")
    with pytest.raises(ValueError, match="done='terminal' requires the column next.done, which c2 does not contain"):
        load(samples / "v3.0/c2", done="terminal")


def test_done_without_success_is_assumed_to_be_truncated_with_a_warning(copy):
    path = copy("v3.0/c3")
    info = json.loads((path / "meta/info.json").read_text())
    del info["features"]["next.truncated"]
    (path / "meta/info.json").write_text(json.dumps(info))
    source = load(path)
    assert "up to 2 episodes" in source.warnings[0] and "assumed to be truncated" in source.warnings[0]
    assert [read.is_terminal for read in source] == [read.is_terminal for read in load(path, done="truncated")]
    assert all(read.is_terminal for read in load(path, done="terminal"))


def test_number_of_rows_that_differs_from_the_description_is_reported(copy):
    root = copy("v3.0/c3")
    assert not any("info.json" in warning for warning in load(root).warnings)
    edit_json(root / "meta/info.json", total_frames=85)
    warning = f"{root.name}: total_frames in info.json is 85, but the sum of lengths in meta/ 84"
    assert warning in load(root).warnings


def test_rows_that_the_description_leaves_out_raise(copy):
    root = copy("v3.0/c3")
    (path,) = root.glob("meta/episodes/*/*.parquet")
    table = pq.read_table(path).drop_columns(["dataset_to_index"])  # It would contradict the length.
    lengths = table["length"].to_pylist()
    for number in (0, len(lengths) - 1):
        shorter = [length - (place == number) for place, length in enumerate(lengths)]
        pq.write_table(table.set_column(table.schema.get_field_index("length"), "length", pa.array(shorter)), path)
        message = rf"has more rows of episode {number} than the {shorter[number]} that meta/ lists; convert"
        with pytest.raises(SourceError, match=message):
            list(load(root))


def test_missing_rewards_are_zeros_with_a_warning(samples):
    source = load(samples / "v3.0/c2")
    assert "has no next.reward; its rewards are zeros" in source.warnings[0]
    assert source.assumed_fields == ("reward",)
    assert {read.total_reward for read in source} == {0.0}


def test_split_selects_a_range_of_episodes(copy):
    path = copy("v3.0/c3")
    edit_json(path / "meta/info.json", splits={"train": "0:5", "val": "5:7"})
    for split, rows in (("train", slice(5)), ("val", slice(5, 7))):
        assert [read.steps["action"][0, 0] for read in load(path, split=split)] == [
            read.steps["action"][0, 0] for read in list(load(path))[rows]
        ]
    with pytest.raises(SourceError, match="has no split 'test'; use one of: train, val"):
        load(path, split="test")


def test_rows_of_a_removed_episode_are_skipped(copy):
    path = copy("v3.0/c3")
    expected = list(load(path))
    (file,) = path.glob("meta/episodes/*/*.parquet")
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table.slice(0, 3), table.slice(4)]), file)
    edit_json(path / "meta/info.json", total_episodes=6)
    for read, other in zip(load(path), [*expected[:3], *expected[4:]], strict=True):
        assert_equal_nests(read.steps, other.steps)


# --- Damaged and hostile datasets


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("v3.0/c3", {"codebase_version": "v1.6"}, "codebase_version must be one of v2.0, v2.1, v3.0, got 'v1.6'"),
        ("v3.0/c3", {"features": []}, "must be a JSON object with 'features'"),
        ("v3.0/c3", {"features": {"action": {"dtype": "float32", "shape": [-1]}}}, "must have a dtype and a shape"),
        ("v3.0/c3", {"features": {"x": {"dtype": "image", "shape": [3]}}}, "must have height, width and channels"),
        ("v3.0/c3", {"total_episodes": 8}, "meta/ lists 7 episodes, but info.json says 8"),
        ("v3.0/c3", {"data_path": "../{chunk_index}/{file_index}"}, "leaves the directory; refused"),
        ("v3.0/c3", {"data_path": "/etc/{chunk_index.__class__}"}, "must be a path with placeholders"),
        ("v2.1/c1", {"data_path": "data/{chunk_index}"}, r"must not contain \{chunk_index\}"),
        ("v2.1/c1", {"chunks_size": "3"}, "chunks_size must be an integer >= 0, got '3'"),
    ],
)
def test_invalid_metadata_raise(copy, name, changes, message):
    path = copy(name)
    edit_json(path / "meta/info.json", **changes)
    with pytest.raises(SourceError, match=message):
        load(path)


def test_damaged_episodes_and_videos_without_timestamps_raise(copy):
    path = copy("v2.1/c2")
    episodes = path / "meta/episodes.jsonl"
    lines = episodes.read_text()
    episodes.write_text(lines.replace('"length": 9', '"length": 0'))
    with pytest.raises(SourceError, match="episode 1 has no rows"):
        load(path)
    episodes.write_text(lines.replace('"length": 9', '"leng'))
    with pytest.raises(SourceError, match="line 2 of .*episodes.jsonl cannot be read as JSON"):
        load(path)
    path = copy("v3.0/c2")
    info = json.loads((path / "meta/info.json").read_text())
    del info["features"]["timestamp"]
    (path / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(SourceError, match="has videos, but no column 'timestamp'"):
        load(path)


def test_hostile_description_of_the_steps_raises(copy):
    path = copy("v3.0/c3")
    own = path / "meta/rlds2reverb.json"
    own.write_text(json.dumps({"paths": {"observation.state": ["is_first"]}}))
    with pytest.raises(SourceError, match="rlds2reverb.json: the path of 'observation.state' must not be"):
        load(path)
    own.write_text(json.dumps({"paths": 3, "vectors": 5, "metadata": 7, "task": 1}))
    assert "task" not in load(path).first_episode.steps


def change_shape(path, feature, shape):
    info = json.loads((path / "meta/info.json").read_text())
    info["features"][feature]["shape"] = shape
    (path / "meta/info.json").write_text(json.dumps(info))


def test_shapes_of_images_may_begin_with_the_channels(copy):
    path, name = copy("v3.0/c2"), "observation.images.wrist"
    info, spec = json.loads((path / "meta/info.json").read_text()), load(path).step_spec
    height, width, channels = info["features"][name]["shape"]
    for names in (["channels", "height", "width"], None):
        info["features"][name] |= {"shape": [channels, height, width], "names": names}
        (path / "meta/info.json").write_text(json.dumps(info))
        assert load(path).step_spec == spec


def test_shapes_that_differ_from_the_files_raise(copy):
    path = copy("v3.0/c2")
    for feature, shape, message in (
        ("action", [8], r"episode 0: 'action' must have \[8\] values per row"),
        (
            "observation.images.wrist",
            [64, 32, 3],
            "step 0: the image must be 32x64, got 32x32; fix the shape in meta/info.json",
        ),
        ("observation.images.front", [64, 32, 3], "the image must be 32x64 as in meta/info.json, got 64x64"),
        ("observation.state", [1 << 24], "declares rows of 134.* MB"),
    ):
        original = json.loads((path / "meta/info.json").read_text())["features"][feature]["shape"]
        change_shape(path, feature, shape)
        with pytest.raises(SourceError, match=message):
            list(load(path))
        change_shape(path, feature, original)
    assert len(list(load(path))) == 5


def test_damaged_files_raise_naming_the_episode(copy):
    path = copy("v2.1/c2")
    video = path / "videos/chunk-001/observation.images.front/episode_000002.mp4"
    video.write_bytes(video.read_bytes()[:2000])
    source = load(path)
    assert len(list(source.read(0, 2))) == 2
    with pytest.raises(SourceError, match="episode 2: 'observation.images.front'.* is damaged"):
        list(source)
    video.write_text("#EXTM3U\n/etc/passwd\n")  # FFmpeg would open what a playlist names.
    with pytest.raises(SourceError, match="is damaged at step 0"):
        list(source)
    video.unlink()
    with pytest.raises(SourceError, match="episode_000002.mp4 is missing"):
        list(source)
    rows = path / "data/chunk-000/episode_000000.parquet"
    rows.write_bytes(rows.read_bytes()[:-9])
    with pytest.raises(SourceError, match="episode_000000.parquet cannot be read as parquet"):
        list(source)


def test_rows_of_other_episodes_and_missing_values_raise(copy):
    path = copy("v2.1/c1")
    file = path / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(file)
    nulls = pa.array([None, *table["next.reward"].to_pylist()[1:]], pa.float32())
    for name, column, message in (
        (
            "episode_index",
            pa.array([4] * len(table)),
            "episode 1, step 0: .* has episode_index 4 where meta/ expects 1",
        ),
        ("next.reward", nulls, "episode 1: 'next.reward' has missing values"),
    ):
        pq.write_table(table.set_column(table.schema.get_field_index(name), name, column), file)
        with pytest.raises(SourceError, match=message):
            list(load(path))
    pq.write_table(table.slice(0, 5), file)
    with pytest.raises(SourceError, match="ends after row 5, inside an episode of 9 rows"):
        list(load(path))


def test_frames_missing_at_a_timestamp_raise(copy):
    path = copy("v2.1/c2")
    file = path / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(file)
    times = pa.array((np.arange(len(table)) / 10 + 0.03).astype(np.float32))
    pq.write_table(table.set_column(table.schema.get_field_index("timestamp"), "timestamp", times), file)
    with pytest.raises(
        SourceError, match=r"step 0: .* has no frame within 0.025 s of 0.0300 s; .*convert the dataset again, leave"
    ):
        list(load(path))


def test_compression_bomb_raises(copy, monkeypatch):
    monkeypatch.setattr(hdf5, "EXPANSION_FREE_BYTES", 1 << 10)
    monkeypatch.setattr(hdf5, "MAX_EXPANSION", 0.01)
    with pytest.raises(SourceError, match="it looks like a compression bomb"):
        load(copy("v3.0/c3"))


def test_missing_pyav_raises_naming_the_extra(samples, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    assert len(list(load(samples / "v3.0/c3"))) == 7
    with pytest.raises(SourceError, match=r"require PyAV .* run .*pip install .*'av<"):
        list(load(samples / "v3.0/c2"))


def test_other_cameras_are_not_decoded(samples, monkeypatch, capsys):
    expected = list(load(samples / "v3.0/c2"))
    monkeypatch.setitem(sys.modules, "av", None)
    for cameras in (["wrist"], "wrist", ["observation.images.wrist"], []):
        source = load(samples / "v3.0/c2", cameras=cameras)
        for read, other in zip(source, expected, strict=True):
            observation = other.steps["observation"]
            images = {"images": {"wrist": observation["images"]["wrist"]}} if cameras else {}
            assert_equal_nests(read.steps["observation"], {"state": observation["state"], **images})
    path = str(samples / "v2.1/c2")
    assert run(["inspect", path, "--camera", "none"]) == 0
    assert "images" not in capsys.readouterr().out
    assert run(["inspect", path, "--camera", "none", "--camera", "wrist"]) == 1
    assert "--camera must be the names of cameras, or only none, got none wrist" in capsys.readouterr().err
    assert run(["inspect", path, "--camera", "rear"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "c2 must have one camera 'rear', got 0; its cameras are observation.images.front" in error
    assert error.endswith("(--camera)")
    with pytest.raises(ValueError, match="cameras=.*does not apply to a robomimic file"):
        load(samples.parent / "robomimic/d1_low_dim.hdf5", cameras=[])


# --- Written datasets


def assert_same_rows(got, expected):
    """Asserts that two sources have equal rows of real actions, ends and seeds."""
    for have, want in zip(got, expected, strict=True):
        assert [path for path, _ in have.columns] == [path for path, _ in want.columns]
        num_rows = want.num_steps if want.dropped_last_transition else want.num_transitions
        for (path, column), (_, other) in zip(have.columns, want.columns, strict=True):
            column, other = column[:num_rows], other[:num_rows]
            if path[0] == "is_last" and not want.dropped_last_transition:  # A truncated episode ends one step earlier.
                column, other = column[:-1], other[:-1]
            assert (column.dtype, column.shape) == (other.dtype, other.shape), path
            assert column.tolist() == other.tolist(), path
        assert (have.is_terminal, have.unterminated, have.seed) == (want.is_terminal, want.unterminated, want.seed)


SOURCES = (
    "d4rl/pendulum_mixed-v2.hdf5",
    "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5",
    "tfds_fake/robomimic_ph/lift_low_dim.hdf5",
    "minari/classic/pendulum-dict/dev-v0",
    *(f"formats/lerobot/{name}" for name in SAMPLES),
)


@pytest.mark.parametrize(
    ("version", "name"),
    mark_slow_except(
        [*itertools.product(lerobot_writer.VERSIONS, SOURCES[1:4:2]), (lerobot_writer.VERSIONS[0], SOURCES[5])],
        itertools.product(lerobot_writer.VERSIONS, SOURCES),
    ),
)
def test_written_rows_are_read_back_equal(data, tmp_path, name, version):
    source = load(data / name)
    report = write_dataset(source, tmp_path / "x", format="lerobot", lerobot_version=version)
    written = load(tmp_path / "x")
    assert_same_rows(written, source)
    assert written.warnings == () and report.episodes == written.num_episodes
    assert (written.env_spec, written.action_space) == (source.env_spec, source.action_space)


@pytest.mark.slow
def test_dataset_goes_through_every_format_that_can_express_it(data, tmp_path):
    source = written = load(data / "tfds_fake/robomimic_ph/lift_low_dim.hdf5")
    for format in ("lerobot", "rlds", "lerobot", "minari", "lerobot"):
        path = tmp_path / f"{format}-{len(list(tmp_path.iterdir()))}-v0"
        write_dataset(written, path, format=format, recompute_discounts=format == "lerobot")
        written = load(path)
    assert_same_rows(written, source)


def make_steps(**columns):
    return {**episode(4, terminal=True), **columns}


def test_nests_images_strings_and_dtypes_are_read_back_equal(tmp_path):
    random = np.random.default_rng(0)
    observation = {
        "rgb": random.integers(0, 256, (4, 6, 8, 3), np.uint8),
        "grey": random.integers(0, 256, (4, 6, 8, 1), np.uint8),
        "note": np.array([b"a", "größer".encode(), b"", b""], object),
        "matrix": random.normal(size=(4, 2, 3)),
        "cube": random.integers(0, 9, (4, 2, 1, 3)),
        **{
            np.dtype(dtype).name: np.arange(4).astype(dtype)[:, None]
            for dtype in (bool, np.int8, np.uint64, np.float16)
        },
        "scalar": np.arange(4.0),
    }
    failure = {"next.success": np.zeros(4, bool)}
    text = np.array([b"lift", b"lift", b"push", b""], object)
    source = load([make_steps(observation=observation, language_instruction=text, action=np.arange(4), **failure)] * 2)
    for version in lerobot_writer.VERSIONS:
        write_dataset(source, tmp_path / version, format="lerobot", lerobot_version=version)
        assert_same_rows(load(tmp_path / version), source)
    tasks = pq.read_table(tmp_path / "v3.0/meta/tasks.parquet").to_pylist()
    assert tasks == [{"task_index": i, "__index_level_0__": text} for i, text in enumerate(("lift", "push"))]


def test_ends_and_seeds_are_read_back_equal(tmp_path):
    episodes = [
        Episode(episode(3, terminal=False), 0, unterminated=True, seed=7),
        Episode(episode(2, terminal=False), 1),
        Episode(episode(2, terminal=True), 2, seed=0),
        Episode(episode(1, terminal=False), 3, dropped_last_transition=True),
    ]
    source = load([episode(3, terminal=False)] * 4)
    source.read = lambda: iter(episodes)
    for version in lerobot_writer.VERSIONS:
        report = write_dataset(source, tmp_path / version, format="lerobot", lerobot_version=version)
        assert_same_rows(load(tmp_path / version), episodes)
        sentence = "are not written, so that load() drops the last transition of each truncated episode (2 episodes)"
        assert any(sentence in warning for warning in report.warnings)


def test_large_datasets_are_written_to_several_files(tmp_path, monkeypatch):
    for name, value in {"FILE_MB": 0, "ROW_GROUP_BYTES": 100, "CHUNKS_SIZE": 2, "EPISODES_PER_GROUP": 2}.items():
        monkeypatch.setattr(lerobot_writer, name, value)
    source = load([episode(length, terminal=True) for length in (3, 4, 5, 6, 7)])
    for version in lerobot_writer.VERSIONS:
        write_dataset(source, tmp_path / version, format="lerobot", lerobot_version=version)
        assert_same_rows(load(tmp_path / version), source)
        numbered = load(tmp_path / version, extra_fields=["index"])
        assert [number for read in numbered for number in read.steps["index"][:-1]] == list(range(20))
        files = sorted(str(path.relative_to(tmp_path / version)) for path in tmp_path.glob(f"{version}/data/*/*"))
        assert len(files) == 5 and len({file.split("/")[1] for file in files}) == 3


def test_statistics_are_those_of_all_rows(data, tmp_path):
    source = load(data / "formats/lerobot/v3.0/c2")
    write_dataset(source, tmp_path / "x", format="lerobot")
    stats = json.loads((tmp_path / "x/meta/stats.json").read_text())
    actions = np.concatenate([read.steps["action"] for read in source]).astype(np.float64)
    expected = {"min": actions.min(0), "max": actions.max(0), "mean": actions.mean(0), "std": actions.std(0)}
    for key, value in expected.items():
        np.testing.assert_allclose(stats["action"][key], value, rtol=1e-6)
    assert stats["action"]["count"] == [61] and np.shape(stats["observation.images.wrist"]["mean"]) == (3, 1, 1)
    original = json.loads((data / "formats/lerobot/v3.0/c2/meta/stats.json").read_text())
    for name in ("action", "observation.state", "observation.images.wrist", "timestamp"):
        np.testing.assert_allclose(stats[name]["mean"], original[name]["mean"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("version", mark_slow_except(lerobot_writer.VERSIONS[:1], lerobot_writer.VERSIONS))
def test_videos_differ_by_at_most_the_stated_error(data, tmp_path, version):
    source = load(data / "formats/lerobot/v3.0/c2")
    report = write_dataset(source, tmp_path / "x", format="lerobot", lerobot_version=version, video=True)
    largest = {"front": 0, "wrist": 0}
    for have, want in zip(load(tmp_path / "x"), source, strict=True):
        for name in largest:
            pixels = (one.steps["observation"]["images"][name].astype(int) for one in (have, want))
            largest[name] = max(largest[name], int(np.abs(np.subtract(*pixels)).max()))
    for name, error in largest.items():
        assert f"'observation.images.{name}' is a video, which is lossy: its pixels differ by up to {error} of 255" in (
            report.warnings
        )


def test_rate_is_that_of_the_source_or_the_option(tmp_path, data):
    source = load([episode(3, terminal=True)])
    source = load(source, mapping={"constant": {"task": "hop"}})
    assert (
        "timestamps assume 30 rows per second" in write_dataset(source, tmp_path / "a", format="lerobot").warnings[-1]
    )
    options = {"format": "lerobot", "fps": 12.5, "recompute_discounts": True}
    assert not any("timestamps" in warning for warning in write_dataset(source, tmp_path / "b", **options).warnings)
    assert write_dataset(load(tmp_path / "b"), tmp_path / "c", format="lerobot").warnings == ()
    assert load(tmp_path / "c", extra_fields=["timestamp"]).first_episode.steps["timestamp"].tolist() == pytest.approx(
        [0, 0.08, 0]
    )
    with pytest.raises(ValueError, match="fps must be a number > 0, got -1"):
        write_dataset(source, tmp_path / "d", format="lerobot", fps=-1)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"observation": (np.zeros(4),)}, {}, r"step\['observation'\]\[0\] is in a tuple, which LeRobot cannot"),
        ({"reward": np.zeros((4, 2))}, {}, r"step\['reward'\] must be one number for LeRobot"),
        ({"x": np.zeros((4, 0))}, {}, r"step\['x'\] must have a fixed shape of at most 5 dimensions, none of them 0"),
        ({"x": np.full((4, 2), b"", object)}, {}, r"step\['x'\] must be one string per step for LeRobot"),
        ({"x": np.array([b"\xff"] * 4, object)}, {}, r"episode 0: step\['x'\] must be UTF-8 for LeRobot"),
        ({"timestamp": np.zeros(4)}, {}, r"step\['timestamp'\] would replace LeRobot's own column 'timestamp'"),
        ({"observation.state": np.zeros(4)}, {}, "two fields of a step would become the column 'observation.state'"),
        ({"observation": np.zeros((4, 5, 6, 3), np.uint8)}, {"video": True}, "even height and width to become a video"),
    ],
)
def test_data_that_lerobot_cannot_represent_raise(tmp_path, columns, options, message):
    with pytest.raises(SourceError, match=message):
        write_dataset([make_steps(**columns)], tmp_path / "x", format="lerobot", **options)
    assert list(tmp_path.iterdir()) == []


def test_command_names_what_is_lost_before_it_writes(data, tmp_path, capsys):
    from rlds2reverb.cli.main import run

    source = data / "d4rl/pendulum_mixed-v2.hdf5"
    arguments = ["--format", "lerobot", "--lerobot-version", "v2.1", "--fps", "20", "--out", str(tmp_path / "x")]
    assert run(["convert", str(source), *arguments]) == 0
    assert "LeRobot has no row for the last step of an episode" in capsys.readouterr().err
    assert load(tmp_path / "x").metadata["fps"] == 20
