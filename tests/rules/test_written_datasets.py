"""The content of written datasets: no placeholders, one layout, and everything that its format can hold."""

import itertools
import json
import shutil
import warnings
from dataclasses import replace

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from properties import mark_slow_except

from rlds2reverb import SourceError, ingest, load, summarize, write_dataset
from rlds2reverb.datasets.source import Source
from rlds2reverb.datasets.writers.writing import WRITTEN_FORMATS
from rlds2reverb.reverb.writing.report import IngestWarning
from rlds2reverb.types.episodes import Episode

NAMES = {"d4rl": "out.hdf5", "rlds": "out/1.0.0", "minari": "out-v0", "lerobot": "out", "robomimic": "demo.hdf5"}
#: Whether the final observation of each of two episodes is known, and whether the episode is terminal.
ENDS = {
    "known": [(True, True), (True, False)],
    "unknown": [(False, True), (False, False)],
    "mixed, truncated unknown": [(True, True), (False, False)],
    "mixed, terminal unknown": [(True, False), (False, True)],
}


def make_log(is_known, terminated):
    """Returns a log of four transitions, in which nothing is zero."""
    return {
        "observations": np.arange(1, 5 + is_known, dtype=np.float32)[:, None],
        "actions": np.arange(11, 15, dtype=np.float32)[:, None],
        "rewards": np.arange(21, 25, dtype=np.float32),
        "terminated": terminated,
    }


def make_transitions(terminal):
    """Returns the same as an RLDS episode whose last row is a transition."""
    is_last = np.arange(4) == 3
    steps = {"observation": np.arange(1, 5)[:, None], "action": np.arange(11, 15)[:, None], "reward": np.arange(21, 25)}
    steps = {name: column.astype(np.float32) for name, column in steps.items()}
    return {
        **steps,
        "discount": np.full(4, 1, np.float32),
        "is_first": np.arange(4) == 0,
        "is_last": is_last,
        "is_terminal": is_last & terminal,
    }


def write(source, folder, format, **options):
    report = write_dataset(source, folder / NAMES[format], format=format, **options)
    return folder / NAMES[format], report


def read_rows(path, format):
    """Returns the observations and actions of each episode as the files contain them."""
    if format in ("d4rl", "robomimic", "minari"):
        with h5py.File(path / "data/main_data.hdf5" if format == "minari" else path) as file:
            if format == "d4rl":
                ends = np.flatnonzero(file["terminals"][()] | file["timeouts"][()]) + 1
                columns = [file[name][()] for name in ("observations", "actions")]
                columns += [file["next_observations"][()]] if "next_observations" in file else []
                return [[part.ravel() for part in np.split(column, ends[:-1])] for column in columns]
            groups = file["data"].values() if format == "robomimic" else file.values()
            names = ("obs/flat", "actions", "next_obs/flat") if format == "robomimic" else ("observations", "actions")
            return [[group[name][()].ravel() for group in groups] for name in names if name in next(iter(groups))]
    if format == "lerobot":
        table = pq.read_table(path / "data/chunk-000/file-000.parquet").to_pydict()
        cuts = np.flatnonzero(np.diff(table["episode_index"])) + 1
        return [np.split(np.ravel(table[name]), cuts) for name in ("observation.state", "action")]
    import tensorflow_datasets as tfds

    records = tfds.builder_from_directory(path).as_dataset(split="train")
    steps = [next(iter(record["steps"].batch(99))) for record in records]
    return [[step[name].numpy().ravel() for step in steps] for name in ("observation", "action")]


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("format", WRITTEN_FORMATS)
def test_written_datasets_have_no_placeholders_and_one_layout(tmp_path, format, ends):
    source = load([make_log(*end) for end in ENDS[ends]])
    path, report = write(source, tmp_path, format)
    observations, actions, *following = read_rows(path, format)
    is_known = ends == "known"
    num_rows = [len(rows) for rows in observations]
    assert all((rows != 0).all() for part in (observations, *following) for rows in part)
    if format == "minari":  # It requires the observation after the last action.
        assert [len(rows) for rows in actions] == [4 if known or terminal else 3 for known, terminal in ENDS[ends]]
        assert all(len(rows) == len(acts) + 1 for rows, acts in zip(observations, actions, strict=True))
        sentences = (
            "end in a copy of their last observation",
            "the last transitions of 1 truncated episodes are left out",
        )
        for sentence, expected in zip(sentences, ((False, True), (False, False)), strict=True):
            assert any(sentence in warning for warning in report.warnings) == (expected in ENDS[ends])
    else:
        has_final_rows = format == "rlds" and is_known
        assert num_rows == [4 + has_final_rows] * 2
        assert all(rows[:4].tolist() == [11, 12, 13, 14] for rows in actions)
        assert bool(following) == (is_known and format in ("d4rl", "robomimic"))
    if not is_known and format in ("d4rl", "rlds", "robomimic"):
        num_unknown = sum(not known for known, _ in ENDS[ends])
        sentence = (
            f"the final observations of {num_unknown} episodes are unknown, so that the last row of every episode"
        )
        (found,) = [warning for warning in report.warnings if sentence in warning]
        assert ("those of the other 1 are not written" in found) == ("mixed" in ends)
    for got, (known, terminal) in zip(load(path), ENDS[ends], strict=True):
        assert got.is_terminal == terminal
        keeps_end = known and (format == "minari" or (is_known and format != "lerobot"))
        assert (got.is_end_known, got.unknown_final_observation) == (
            keeps_end or (format == "minari" and not terminal),
            terminal and not keeps_end,
        )
        assert got.total_reward == (90 if terminal or keeps_end else 66)


@pytest.mark.parametrize(
    ("first", "second"),
    mark_slow_except(
        [("lerobot", "rlds"), ("minari", "robomimic"), ("robomimic", "lerobot")],
        [pair for pair in itertools.product(WRITTEN_FORMATS, WRITTEN_FORMATS) if pair != ("robomimic", "d4rl")],
    ),
)
def test_unknown_ends_survive_a_second_format(tmp_path, first, second):
    source = load([make_log(False, True), make_log(False, False)])
    path, _ = write(source, tmp_path / "a", first)
    written = load(path)
    (terminal, truncated), expected = load(write(written, tmp_path / "b", second)[0]), list(source)
    assert terminal.unknown_final_observation and terminal.is_terminal and terminal.total_reward == 90
    if "minari" not in (first, second):
        assert truncated.dropped_last_transition and truncated.num_steps == 4
    for got, want in zip((terminal, truncated), expected, strict=True):
        assert got.steps["reward"][:3].tolist() == want.steps["reward"][:3].tolist()


@pytest.mark.parametrize("format", WRITTEN_FORMATS)
def test_transitions_of_rlds_are_written_although_their_discount_was_replaced(tmp_path, format):
    from reference_impls import rlds_dataset

    source = load(rlds_dataset([make_transitions(True), make_transitions(False)]), last_step="transition")
    assert [episode.steps["discount"].tolist()[-2:] for episode in source] == [[0, 0], [0, 1]]
    path, report = write(source, tmp_path, format)
    observations, actions = read_rows(path, format)[:2]
    assert all((rows != 0).all() for rows in observations) and len(actions[0]) == 4
    assert len(actions[1]) == 3 + (format != "minari") and report.transitions == 8 - (format == "minari")
    if format == "rlds":
        for got, want in zip(load(path), source, strict=True):
            assert got.unknown_final_observation
            assert all((have == column).all() for (_, have), (_, column) in zip(got.columns, want.columns, strict=True))


def test_discount_of_the_source_returns_to_the_last_row(tmp_path):
    import tensorflow_datasets as tfds
    from reference_impls import rlds_dataset

    rows = {**make_transitions(False), "discount": np.full(4, 0.5, np.float32)}
    path, _ = write(load(rlds_dataset([rows]), last_step="transition"), tmp_path, "rlds")
    (record,) = tfds.builder_from_directory(path).as_dataset(split="train")
    assert [step["discount"].numpy() for step in record["steps"]] == [0.5] * 4


def test_progress_of_datasets_with_unknown_ends_counts_each_episode_once(tmp_path):
    seen = []
    source = load([make_log(False, True)] * 3)
    write(source, tmp_path, "rlds", progress=lambda stage, episode: seen.append(episode.index))
    assert seen == [0, 1, 2]


# --- names, success, masks and texts of tasks


def test_lerobot_keeps_names_and_success(data, tmp_path):
    source = load(data / "formats/lerobot/v3.0/c3")
    path, report = write(source, tmp_path, "lerobot")
    infos = [
        json.loads((root / "meta/info.json").read_text())["features"]
        for root in (data / "formats/lerobot/v3.0/c3", path)
    ]
    for name in ("action", "next.success"):
        assert infos[0][name] == infos[1][name]
    assert report.warnings == ()
    tables = [
        pq.read_table(root / "data/chunk-000/file-000.parquet") for root in (data / "formats/lerobot/v3.0/c3", path)
    ]
    assert tables[0]["next.success"].to_pylist() == tables[1]["next.success"].to_pylist()


@pytest.mark.parametrize("format", ["rlds", "minari", "robomimic"])
def test_names_of_motors_are_kept(data, tmp_path, format):
    source = load(data / "formats/lerobot/v3.0/c3")
    path, _ = write(source, tmp_path, format)
    back, _ = write(load(path), tmp_path / "back", "lerobot")
    assert json.loads((back / "meta/info.json").read_text())["features"]["action"]["names"][0] == "joint_0"


def test_names_of_other_numbers_of_elements_are_left_out(tmp_path):
    source = load([make_log(True, True)])
    source.metadata = {"feature_names": json.dumps({"action": ["a", "b"]})}
    path, _ = write(source, tmp_path, "lerobot")
    assert json.loads((path / "meta/info.json").read_text())["features"]["action"]["names"] is None


@pytest.mark.parametrize(
    "format", mark_slow_except(["lerobot", "robomimic"], ["rlds", "minari", "lerobot", "robomimic"])
)
def test_filter_keys_of_robomimic_are_kept(data, tmp_path, format):
    source = load(data / "formats/robomimic/d1_low_dim.hdf5")
    path, _ = write(source, tmp_path, format)
    masks = [[bool(episode.metadata["mask"][key]) for episode in source] for key in ("train", "valid")]
    assert any(masks[0]) and any(masks[1])
    assert [[bool(got.metadata["mask"][key]) for got in load(path)] for key in ("train", "valid")] == masks
    back, _ = write(load(path), tmp_path / "back", "robomimic")
    for key, mask in zip(("train", "valid"), masks, strict=True):
        assert load(back, split=key).num_episodes == sum(mask)


def make_task_sources(folder):
    """Yields sources whose task is in different places, and one without any."""
    log = make_log(True, True)
    text = np.array([b"lift it"] * 4, object)
    yield "lift it", load([{**log, "task": text}])
    observations = {"x": log["observations"], "natural_language_instruction": np.array([b"lift it"] * 5, object)}
    yield "lift it", load([{**log, "observations": observations}])
    episode = load([log]).first_episode
    metadata = {"episode_metadata": {"language_instruction": np.array(b"lift it", object)}}
    yield "lift it", Source("lift.hdf5", "memory", lambda: iter([Episode(episode.steps, 0, metadata=metadata)]))
    path, _ = write(load([log]), folder, "robomimic")
    with h5py.File(path, "a") as file:
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": "lift it"})
    yield "lift it", load(path)
    yield "", load([log])


def test_texts_of_tasks_are_found_and_never_invented(tmp_path):
    for number, (text, source) in enumerate(make_task_sources(tmp_path)):
        path, _ = write(source, tmp_path / str(number), "lerobot")
        assert pq.read_table(path / "meta/tasks.parquet")["__index_level_0__"].to_pylist() == [text]


# --- values that a format cannot represent


@pytest.mark.parametrize(
    ("format", "values", "message"),
    [
        *(
            (
                format,
                np.zeros((4, 2), dtype),
                rf"step\['x'\] must contain numbers of at most 64 bits or strings for .*{dtype}",
            )
            for format in WRITTEN_FORMATS
            for dtype in ("complex64", "datetime64", "float128")
        ),
        ("lerobot", np.full(4, 1 << 63, np.uint64), r"episode 0: step\['x'\] must be below 2\^63 for LeRobot.*drop it"),
        (
            "lerobot",
            np.array(["\ud800"] * 4, object),
            r"step\['x'\] of episode 0, step 0 must be a string that UTF-8 can represent for LeRobot",
        ),
    ],
)
def test_values_that_a_format_cannot_represent_raise_naming_the_field(tmp_path, format, values, message):
    steps = {**make_transitions(False), "x": values}
    with pytest.raises(SourceError, match=message):
        write(Source("x", "memory", lambda: iter([Episode(steps, 0)])), tmp_path, format)
    assert not list(tmp_path.glob("**/*.parquet"))


@pytest.mark.parametrize(
    ("path", "unread"),
    [
        ("d4rl/hopper_medium-v2.hdf5", ("infos/action_log_probs", "infos/qpos", "infos/qvel")),
        ("formats/ogbench/puzzle-3x3-play-v0-val.npz", ("button_states", "qpos", "qvel")),
        ("formats/robomimic/d1_low_dim.hdf5", ("states",)),
        ("formats/lerobot/v2.1/c1", ("subtask",)),
        ("formats/vd4rl/drqv2_cartpole_swingup/buffer", ("physics",)),
        ("minari/mujoco/hopper/dev-v0", ("infos/qpos",)),
    ],
)
def test_columns_that_are_not_read_are_listed(tmp_path, data, path, unread):
    copy = tmp_path / path
    shutil.copytree(data / path, copy) if (data / path).is_dir() else shutil.copytree((data / path).parent, copy.parent)
    for file in [copy] if "robomimic" in path else copy.glob("data/*.hdf5"):
        with h5py.File(file, "r+") as opened:
            for group in opened["data"].values() if "robomimic" in path else opened.values():
                group["states" if "robomimic" in path else "infos/qpos"] = np.zeros(len(group["actions"]))
    if "lerobot" in path:
        info = json.loads((copy / "meta/info.json").read_text())
        info["features"]["subtask"] = {"dtype": "int64", "shape": [1], "names": None}
        (copy / "meta/info.json").write_text(json.dumps(info))
    for file in copy.glob("*.npz"):
        with np.load(file) as arrays:
            np.savez(file, **arrays, physics=np.zeros(len(arrays["reward"])))
    source = load(copy)
    assert source.unread == unread
    sentence = f"{source.name}: columns that are not read: {', '.join(unread)}"
    _, report = write(source, tmp_path, "rlds")
    assert sentence in report.warnings
    assert ("unread", ", ".join(unread)) in summarize(source).facts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IngestWarning)
        report = ingest(source, tmp_path / "items", on_invalid="keep")
    assert ("unread", ", ".join(unread)) in report.facts()


@pytest.mark.parametrize("format", WRITTEN_FORMATS)
@pytest.mark.parametrize("value", ["\ud800", 3])
def test_text_that_cannot_be_encoded_is_named(tmp_path, format, value):
    (made,) = load([make_log(True, True)])
    texts = np.array(["a", "b", value, "d", "e"], object)
    source = Source("x", "memory", lambda: iter([Episode({**made.steps, "text": texts}, 0)]))
    expected = "numbers" if format == "d4rl" else r"step\['text'\] of episode 0, step 2 must be a string"
    with pytest.raises(SourceError, match=expected):
        write(source, tmp_path, format)
    assert not list(tmp_path.rglob("*.*"))


def test_changed_timestamps_are_reported(tmp_path):
    log = {**make_log(True, True), "timestamp": np.zeros(4)}
    for times, is_changed in ((np.arange(4) / 30 + 7, False), (np.array([0, 0.1, 0.2, 0.9]), True)):
        (made,) = load([{name: column for name, column in log.items() if name != "timestamp"}])
        source = Source("x", "memory", lambda times=times, made=made: iter([replace(made, timestamps=times)]))
        _, report = write(source, tmp_path / str(is_changed), "lerobot", fps=30)
        changed = "the timestamps of 1 episodes are changed to those of 30 rows per second"
        assert (changed in report.warnings) == is_changed
