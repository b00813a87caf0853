"""Tests of datasets that TFDS prepared as ArrayRecord files."""

import itertools
import sys

import cloudpickle
import numpy as np
import pytest
import tensorflow_datasets as tfds
from properties import mark_slow_except
from reference_impls import assert_equal_nests

from rlds2reverb import SourceError, load
from rlds2reverb.cli import run
from rlds2reverb.datasets.transforms import DropFields, apply_transforms

LENGTHS = (5, 7, 1, 4, 9, 3, 2)
STEP = {
    "observation": {
        "state": tfds.features.Tensor(shape=(2,), dtype=np.float32),
        "image": tfds.features.Image(shape=(4, 5, 3), encoding_format="png"),
    },
    "action": tfds.features.Tensor(shape=(1,), dtype=np.float32),
    "reward": tfds.features.Scalar(np.float32),
    "is_first": tfds.features.Scalar(np.bool_),
    "is_last": tfds.features.Scalar(np.bool_),
    "is_terminal": tfds.features.Scalar(np.bool_),
    "instruction": tfds.features.Text(),
}


def make_steps(length):
    for step in range(length):
        is_last = step == length - 1
        yield {
            "observation": {"state": [length, step], "image": np.full((4, 5, 3), 10 * length + step, np.uint8)},
            "action": [step + 1],
            "reward": float(is_last),
            "is_first": step == 0,
            "is_last": is_last,
            "is_terminal": is_last,
            "instruction": f"task {length}",
        }


def prepare(folder, file_format, damaged=()):
    """Returns the path of a dataset in three files of different lengths; in some episodes, an image is damaged."""

    class Robots(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = folder

        def _info(self):
            features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(STEP)})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for length in LENGTHS:
                steps = list(make_steps(length))
                if length in damaged:
                    steps[-1]["observation"]["image"] = b"no image"
                yield length, {"steps": steps}

    builder = Robots(data_dir=folder / file_format, file_format=file_format)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    return builder.data_path


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Returns the paths of the same dataset in both formats."""
    return {name: prepare(tmp_path_factory.mktemp(name), name) for name in ("tfrecord", "array_record")}


@pytest.mark.parametrize(
    ("split", "image_decoding"),
    mark_slow_except(
        [("train[4:]+train[:2]", False)],
        itertools.product(["train", "train[1:5]", "train[4:]+train[:2]"], [True, False]),
    ),
)
def test_array_records_are_read_like_tfrecords(prepared, split, image_decoding):
    options = {"split": split, "image_decoding": image_decoding}
    expected, got = (list(load(path, **options)) for path in prepared.values())
    assert [episode.num_transitions for episode in got] == [episode.num_transitions for episode in expected]
    for episode, other in zip(got, expected, strict=True):
        assert_equal_nests(episode.steps, other.steps)


@pytest.mark.slow
def test_array_records_can_be_read_in_parts_and_in_other_processes(prepared):
    source = load(prepared["array_record"])
    whole = [episode.num_transitions for episode in source]
    assert sorted(whole) == sorted(LENGTHS)
    copy = cloudpickle.loads(cloudpickle.dumps(source))
    assert [episode.num_transitions for episode in copy.read(2, 5)] == whole[2:5]


@pytest.mark.slow
@pytest.mark.usefixtures("no_policies")
def test_array_records_train_a_clone(prepared, tmp_path):
    options = ["--steps", "2", "--run-dir", str(tmp_path / "run"), "--batch-size", "4"]
    assert run(["train", "--algo", "bc", "--data", str(prepared["array_record"]), *options]) == 0


def test_damaged_array_records_raise(prepared, tmp_path):
    for path in prepared["array_record"].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    first, second, third = sorted(tmp_path.glob("*array_record*"))
    third.write_bytes(second.read_bytes()[:1000])
    with pytest.raises(SourceError, match="is damaged at episode 5"):
        list(load(tmp_path))
    second.write_bytes(first.read_bytes())
    with pytest.raises(
        SourceError, match="is damaged at episode 2 .*a file must have 3 records as in shard_lengths, got 2"
    ):
        list(load(tmp_path))


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_damaged_images_do_not_block_other_fields_and_episodes(prepared, tmp_path, file_format):
    source = load(prepare(tmp_path, file_format, damaged=LENGTHS[:2]))
    expected = list(load(prepared[file_format]))
    with pytest.raises(SourceError, match="is damaged at episode .*, or leave a damaged field out .DropFields"):
        list(source)
    kept = [episode.num_transitions for episode in load(source, on_invalid="skip_episode")]
    assert kept == [episode.num_transitions for episode in expected if episode.num_transitions not in LENGTHS[:2]]
    for paths in ("observation/image", "instruction"), ("observation/image",):
        dropped, described = apply_transforms(cloudpickle.loads(cloudpickle.dumps(source)), [DropFields(paths)])
        assert described["dropped_fields"] == list(paths)
        for episode, other in zip(dropped, expected, strict=True):
            names = other.steps.keys() - set(paths)
            steps = {**other.steps, "observation": {"state": other.steps["observation"]["state"]}}
            assert_equal_nests(episode.steps, {name: steps[name] for name in sorted(names)})


def test_missing_package_is_named(prepared, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python", None)
    with pytest.raises(
        SourceError, match=r"requires the package array-record, .*pip install .* array-record, .*tfrecord"
    ):
        load(prepared["array_record"])
