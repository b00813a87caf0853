"""Training from a store: the same batches as from memory, whatever the data, and without being asked if needed."""

import csv
import threading
import time

import internals
import numpy as np
import pytest
from reference_impls import assert_equal_nests

from rlds2reverb import InvalidEpisodeError, load, train
from rlds2reverb.cli import run
from rlds2reverb.datasets.steps import loaded_steps, stores as store
from rlds2reverb.datasets.transforms import CastFloats, apply_transforms
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.sources import find_fingerprint, open_data

#: Options for data whose actions have a part that is a flag, which no agent learns.
NUMBERS_ONLY = {"drop_fields": ("action/gripper",)}


def read_items(data):
    return data.items.read_items(np.arange(data.items.num_items))


@pytest.mark.parametrize(
    ("path", "algo", "options"),
    [
        (
            "d4rl/hopper_medium-v2.hdf5",
            "iql",
            {
                "n_step": 3,
                "reward": "iql_locomotion",
                "clip_actions": True,
                "action_bounds": (-1, 1),
                "top_percent": 40,
            },
        ),
        pytest.param("d4rl/hopper_medium-v2.hdf5", "rebrac", {"cut_at_terminal": True}, marks=pytest.mark.slow),
        pytest.param("rlds/physics_rlds/pendulum_pixels/1.0.0", "bc", {}, marks=pytest.mark.slow),
        pytest.param("formats/rlds/a4/nested_cameras/1.0.0", "bc", NUMBERS_ONLY, marks=pytest.mark.slow),
        ("minari/classic/pendulum-dict/dev-v0", "td3_bc", {}),
    ],
)
def test_store_has_the_items_of_memory(tmp_path, data, path, algo, options):
    got, expected = (
        open_data(str(data / path), TrainingConfig(algo, store_dir=folder, **options))
        for folder in (str(tmp_path), None)
    )
    assert_equal_nests(read_items(got), read_items(expected))
    assert got.identity() == expected.identity()
    assert (got.time_step_spec, got.action_spec, got.notes) == (
        expected.time_step_spec,
        expected.action_spec,
        expected.notes,
    )
    assert got.returns.tolist() == expected.returns.tolist() and got.num_episodes == expected.num_episodes


def test_stored_float64_is_cast_when_it_is_read(tmp_path):
    place = np.arange(4.0)
    log = {"observations": {"x": place[:, None] / 3, "n": np.arange(4)}, "actions": place[:3, None] / 3}
    source = load([{**log, "rewards": np.array([1, 2, 3]), "terminated": True}])
    got, expected = (
        open_data(source, TrainingConfig("td3", store_dir=folder, clip_actions=True, action_bounds=(0, 0.5)))
        for folder in (str(tmp_path), None)
    )
    assert got.time_step_spec == expected.time_step_spec and got.identity() == expected.identity()
    assert_equal_nests(read_items(got), read_items(expected))


@pytest.mark.slow
def test_store_is_read_where_it_is(tmp_path, data):
    source = load(data / "rlds/physics_rlds/pendulum_pixels/1.0.0", image_decoding=False)
    store.build_store(source, tmp_path / "store")
    got = open_data(str(tmp_path / "store"), TrainingConfig("bc"))
    assert got.items.steps.layout.columns[5].pixels is not None and len(list(tmp_path.iterdir())) == 1
    assert_equal_nests(read_items(got), read_items(open_data(source, TrainingConfig("bc"))))
    changed = TrainingConfig("bc", drop_fields=("observation/image",), store_dir=str(tmp_path / "stores"))
    assert [*read_items(open_data(str(tmp_path / "store"), changed))["observation"]] == ["state"]


@pytest.mark.slow
def test_encoded_images_are_decoded_for_each_batch(data):
    path = data / "rlds/physics_rlds/pendulum_pixels/1.0.0"
    got, expected = (open_data(load(path, image_decoding=decoding), TrainingConfig("bc")) for decoding in (False, True))
    assert got.items.steps.num_bytes < expected.items.steps.num_bytes / 10
    assert_equal_nests(read_items(got), read_items(expected))
    assert got.fingerprint == expected.fingerprint == find_fingerprint(path, TrainingConfig("bc"))
    pixels = expected.items.steps.take(np.arange(9), ["observation"])["observation"]["image"]
    first = load(path).first_episode.steps["observation"]["image"]  # As TFDS decodes them.
    np.testing.assert_array_equal(pixels, first[:9])


@pytest.mark.slow
def test_fingerprint_of_images_is_that_of_their_files(tmp_path, data):
    path = data / "formats/rlds/a4/nested_cameras/1.0.0"
    plain = TrainingConfig("bc", **NUMBERS_ONLY)
    stored = plain.replace(store_dir=str(tmp_path))
    both, twice = ({find_fingerprint(source, config) for config in (stored, plain)}
                   for source in (load(path), [path, path]))  # fmt: skip
    assert len(both) == len(twice) == 1 and both != twice
    changed = apply_transforms(load(path), [CastFloats()])[0]  # Its images were decoded before.
    assert {find_fingerprint(changed, plain)}.isdisjoint(both)
    with pytest.raises(SpecMismatchError, match=r"encode action\['gripper'\] bool"):
        find_fingerprint(path, stored.replace(drop_fields=()))


def test_invalid_episode_with_encoded_images_is_named(data):
    episodes = list(load(data / "rlds/physics_rlds/pendulum_pixels/1.0.0", image_decoding=False).read())
    steps = {**episodes[5].steps, "reward": np.full(episodes[5].num_steps, np.nan, np.float32)}
    with pytest.raises(InvalidEpisodeError) as error:
        open_data([*[one.steps for one in episodes[:5]], steps], TrainingConfig("bc"))
    assert error.value.errors[0].episode == 5


def test_data_that_do_not_fit_in_memory_are_stored(tmp_path, monkeypatch, data):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loaded_steps, "free_memory_bytes", lambda: 900_000)
    got = open_data(str(data / "d4rl/hopper_medium-v2.hdf5"), TrainingConfig("iql"))
    folder = tmp_path / "rlds2reverb"
    assert got.notes[0] == (
        f"the steps need about 683.5 kB of memory, of which 900.0 kB are free; they are stored in {folder} (store_dir)"
    )
    assert [path.name.rsplit("-", 1)[0] for path in folder.iterdir()] == ["hopper_medium-v2.hdf5"]


def test_run_waits_for_the_store_that_another_one_builds(tmp_path, monkeypatch, data):
    config = TrainingConfig("iql", store_dir=str(tmp_path))
    source = load(data / "d4rl/hopper_medium-v2.hdf5")
    opened, build = [], getattr(store, internals.BUILD)

    def build_slowly(source, plan, path, num_workers, on_progress):
        build(source, plan, path, num_workers, lambda *counts: time.sleep(0.2))

    monkeypatch.setattr(store, internals.BUILD, build_slowly)
    threads = [threading.Thread(target=lambda: opened.append(open_data(source, config))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(opened) == 2 and len(list(tmp_path.iterdir())) == 1
    assert_equal_nests(read_items(opened[0]), read_items(opened[1]))


@pytest.mark.slow
@pytest.mark.usefixtures("no_policies")
def test_runs_share_a_store_and_learn_the_same(tmp_path, data):
    path, stores = str(data / "d4rl/hopper_medium-v2.hdf5"), tmp_path / "stores"
    options = {"steps": 20, "env": None, "log_every": 10, "hyperparameters": {"hidden_sizes": (8,)}, "progress": False}
    train(path, "iql", tmp_path / "memory", **options)
    train(path, "iql", tmp_path / "first", store_dir=str(stores), **options)
    (built,) = stores.iterdir()
    before = (built / "store.json").stat().st_mtime_ns
    command = ["train", "--algo", "iql", "--data", path, "--run-dir", str(tmp_path / "second"), "--steps", "20"]
    settings = ["--env", "none", "--log-every", "10", "--set", "hidden_sizes=(8,)", "--store-dir", str(stores)]
    assert run([*command, *settings]) == 0
    assert [*stores.iterdir()] == [built] and (built / "store.json").stat().st_mtime_ns == before
    losses = []
    for name in ("memory", "first", "second"):
        with (tmp_path / name / "progress.csv").open() as file:
            losses.append([row["loss"] for row in csv.DictReader(file)])
    assert len(losses[0]) == 2 and losses[1] == losses[0] and losses[2] == losses[0]


def test_store_directory_that_is_a_file_is_reported(data, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("")
    pendulum = data / "d4rl/pendulum_mixed-v2.hdf5"
    with pytest.raises(ValueError, match="store_dir must be a directory, but .*a.txt is a file"):
        open_data(load(pendulum), TrainingConfig("bc", env=None, store_dir=str(tmp_path / "a.txt")))
    options = ["--algo", "bc", "--data", "missing.hdf5", "--run-dir", str(tmp_path / "run")]
    assert run(["train", *options, "--store-dir", str(tmp_path / "a.txt")]) == 1
    assert f"--store-dir: directory '{tmp_path}/a.txt' is a file" in capsys.readouterr().err
