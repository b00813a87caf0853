"""The rule: what cannot be used is refused at once, by an error that names it."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import h5py
import numpy as np
import pytest

from rlds2reverb import errors, load, write_dataset
from rlds2reverb.adders import WindowAdder, Windows, check_adder, di_engine
from rlds2reverb.datasets.steps.stores import MANIFEST, build_store, read_manifest
from rlds2reverb.datasets.transforms import DropFields, apply_transforms
from rlds2reverb.envs import (
    DiscreteAction,
    GymnasiumEnvironment,
    NonEpisodicAgent,
    create_environment,
)
from rlds2reverb.envs.env_specs import BoundedArraySpec, require_within, sample_action
from rlds2reverb.envs.gymnasium_spaces import make_space
from rlds2reverb.envs.image_wrappers import FrameFlip
from rlds2reverb.learners import load_run
from rlds2reverb.learners.feeds import split_experience_and_info
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.client.chunk_tensors import raw_content, read_spec
from rlds2reverb.reverb.client.samples import decode_column
from rlds2reverb.reverb.wire.message_encoding import numpy_dtype
from rlds2reverb.reverb.wire.protobuf import read_varint
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.training import TrainingConfig
from rlds2reverb.training.cluster.run_preparation import prepare
from rlds2reverb.training.experiments import run_plan
from rlds2reverb.training.plans import plan_seeds
from rlds2reverb.training.progress import Progress
from rlds2reverb.types.mixtures import require_same_items
from rlds2reverb.types.specs import ArraySpec
from rlds2reverb.types.tables import RateLimiter, TableConfig

DATA = Path(__file__).parents[1] / "data"
F4 = np.dtype(np.float32)
SPEC = ArraySpec((2,), F4)
LOG = {"observations": np.zeros((4, 2), np.float32), "actions": np.zeros((3, 1)), "rewards": np.zeros(3)}
LOG |= {"terminated": False}
NUMBERS = {
    "observations": np.zeros((3, 2)),
    "actions": np.zeros((3, 1)),
    "rewards": np.zeros(3),
    "terminals": np.zeros(3),
}
ONLINE = TrainingConfig("sac", env="Pendulum-v1", steps=0, online_steps=20, warmup_steps=5)


def make_env():
    return create_environment("Pendulum-v1")


class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))


def prepare_cluster(source=None, **options):
    return lambda folder: prepare(source, ONLINE.replace(**options), folder, 1, Progress(quiet=True))


def write_store(folder, *, keeps_rest=False, **changes):
    path = folder / "store"
    build_store(load([LOG]), path)
    save_json(path / MANIFEST, {**(read_manifest(path) if keeps_rest else {}), **changes})
    read_manifest(path)


def build_over_a_document(folder):
    save_json(folder / MANIFEST, {"a": 1})
    build_store(load([LOG]), folder)


def plot_an_empty_run(folder):
    save_json(folder / "config.json", {"algo": "bc"})
    load_run(folder).plot(folder / "curve.png")


def load_lerobot(folder, *, split=None, **changes):
    path = shutil.copytree(DATA / "formats/lerobot/v3.0/c3", folder / "c3") / "meta/info.json"
    info = json.loads(path.read_text())
    info |= {key: value(info[key]) if callable(value) else value for key, value in changes.items()}
    path.write_text(json.dumps(info))
    load(folder / "c3", split=split)


def decode(squeeze=False, **changes):
    piece = {"chunk_key": 1, "index": 0, "offset": 0, "length": 1, **changes}
    return decode_column(SimpleNamespace(chunk_slices=[SimpleNamespace(**piece)], squeeze=squeeze), {})


def write_evaluations(folder):
    (folder / "config.json").write_text("{}")
    (folder / "evaluations.csv").write_text("step\n1\n")
    load_run(folder)


def write_columns(folder, **changes):
    with h5py.File(folder / "a.hdf5", "w") as file:
        for name, column in {**NUMBERS, **changes}.items():
            file[name] = column
    list(load(folder / "a.hdf5"))


def start_plan_in_a_run(folder):
    save_json(folder / "config.json", {})
    save_json(folder / "progress.csv", {})
    run_plan(plan_seeds(None, ONLINE, [1]), folder)


#: What is called with an empty folder, the error, and its message.
REFUSALS = [
    (lambda _: check_adder(Windows(2), []), ValueError, "check_adder requires an episode with steps, got none"),
    (lambda _: Windows(2).transform({}, 1), TypeError, "must be the last adder"),
    (lambda _: WindowAdder().find_ranges(None), NotImplementedError, "WindowAdder must override find_ranges"),
    (lambda _: BoundedArraySpec((2,), F4, 1, 0), ValueError, "minimum must be <= maximum, got"),
    (lambda _: require_within([1], (SPEC, SPEC), name="x", advice="y"), errors.SpecMismatchError,
     "x must be a tuple of 2 values, got 1; y"),
    (lambda _: require_within(1, (SPEC,), name="x", advice="y"), errors.SpecMismatchError,
     "x must be a tuple of 1 values, got a int; y"),
    (lambda _: sample_action(SPEC, np.random.default_rng()), TypeError, "actions must have bounds to be sampled"),
    (lambda _: make_space({"a": ArraySpec((), np.dtype("U3"))}), TypeError, "specs must be numeric to become a space"),
    (lambda _: NonEpisodicAgent(make_env(), discount=0), ValueError, "discount must be in (0, 1], got 0"),
    (lambda _: NonEpisodicAgent(make_env(), discount=1.1), ValueError, "discount must be in (0, 1], got 1.1"),
    (lambda _: DiscreteAction(GymnasiumEnvironment(Endless()), 3), ValueError, "whose actions have finite bounds, got"),
    (lambda _: split_experience_and_info([3]), TypeError, "a list of items must contain dicts, as the sample of a"),
    (lambda _: split_experience_and_info([]), TypeError, "a list of items must contain dicts, as the sample of a"),
    (write_evaluations, errors.CorruptFileError, "evaluations.csv must have the columns mean and std"),
    (lambda _: apply_transforms(load([{**LOG, "observations": {"x": LOG["observations"]}}]),
                                [DropFields(("observation/x",))])[0].step_spec, ValueError,
     "'observation/x' cannot be dropped because it is the only field there"),
    (lambda _: load({**NUMBERS, "observations": {"x": np.zeros((3, 2))}}), errors.SourceError,
     "'observations' must be an array, got a nest; pass nests in a list of episodes"),
    (lambda folder: write_columns(folder, rewards=0.0), errors.SourceError, "must have one row per transition"),
    (lambda folder: build_store(load([LOG, {**LOG, "actions": np.zeros((3, 1), np.int32)}]), folder / "store"),
     errors.SpecMismatchError, "step['action'] of episode 1 is int32 [1], but float64 [1] before"),
    (lambda folder: build_store(load([{**LOG, "notes": np.full((3, 2), b"a", object)}]), folder / "store"),
     errors.SpecMismatchError, "step['notes'] must be one text per step, got "),
    (lambda folder: write_dataset([LOG], folder / "x", format="csv"), ValueError, "format must be one of 'd4rl', "),
    (lambda folder: write_dataset([LOG], folder / "x", format="lerobot", lerobot_version="v4"), ValueError,
     "lerobot_version must be one of "),
    (lambda folder: write_dataset([LOG], folder / "x", format="d4rl", on_invalid="drop"), ValueError,
     "on_invalid must be one of 'error', 'skip_episode', 'keep', got 'drop'"),
    (lambda _: FrameFlip(None, channel_order="last"), ValueError, "channel_order must be one of 'channels_last', "),
    (lambda _: NonEpisodicAgent(make_env())._no, AttributeError, "'NonEpisodicAgent' object has no attribute '_no'"),
    (lambda _: di_engine.Adder.get_gae([{"value": np.zeros(2), "reward": 0.0, "done": False}], np.zeros(3), 0.9, 0.9), ValueError,
     "last_value must have as many numbers as a value, 2, got 3"),
    (lambda folder: write_store(folder, version=1), errors.CorruptFileError, f"{MANIFEST} is not that of a store"),
    (lambda folder: write_store(folder, keeps_rest=True, version=-1), errors.SourceError, "is a store of version -1"),
    (build_over_a_document, errors.SourceError, "is neither a store nor empty; pass a different directory"),
    (plot_an_empty_run, ValueError, "has logged nothing yet; there is nothing to draw"),
    (lambda folder: load_lerobot(folder, splits={"none": "3:3"}, split="none"), errors.SourceError,
     "the split 'none' (3:3) has no episodes; choose another"),
    (lambda folder: load_lerobot(folder, features=lambda all: {key: all[key] for key in all if key != "action"}),
     errors.SourceError, "has no columns 'action.*'; it has "),
    (lambda folder: write_dataset(load([LOG], mapping={"describe": {"observation": "gif"}}), folder / "x/1.0.0", format="rlds"),
     ValueError, "the encoding of 'observation' must be png, jpeg or text, got 'gif'"),
    (lambda folder: write_dataset([{**LOG, "observations": np.zeros((4, 0, 3))}], folder / "x-v0", format="minari"),
     errors.SourceError, "must not be empty for Minari"),
    (lambda _: decode(), ValueError, "it refers to a missing chunk"),
    (lambda _: read_spec(1, b"\xff"), ValueError, "a tensor has no valid shape ("),
    (lambda _: read_spec(1, b""), ValueError, "a tensor has type 1 and shape []"),
    (lambda _: raw_content(b"\x05abc", 4), ValueError, "is damaged (it has 5 bytes, expected 4)"),
    (lambda _: raw_content(b"\xff", 4), ValueError, "the content of a tensor is damaged (a number is incomplete)"),
    (lambda _: read_varint(b"\x80\x80", 0), ValueError, "a number is incomplete"),
    (lambda _: numpy_dtype(9999), ValueError, "type 9999 of TensorFlow has no dtype in NumPy"),
    (lambda _: ArraySpec((None, 2), F4).num_bytes, ValueError, "cannot compute the size of"),
    (lambda _: table_infos("a:1,b:2"), ValueError, "a single server is expected here, got 'a:1,b:2'"),
    (lambda _: TableConfig.from_dict({"name": "x"}), ValueError, "{'name': 'x'} is not a table configuration ("),
    (lambda _: RateLimiter("max_samples_per_insert", samples_per_insert=2.0, error_buffer=3.0), ValueError,
     "a max_samples_per_insert rate limiter takes no error_buffer, got 3.0"),
    (lambda _: require_same_items({"a": SPEC, "b": SPEC}, {"a": True, "b": False}), errors.SpecMismatchError,
     "dataset 'a' pads its items, but dataset 'b' does not; mix datasets whose items have the same spec"),
    (prepare_cluster(deterministic=True), ValueError, "deterministic=True requires a single process; use train"),
    (prepare_cluster([LOG], algo="bc", env=None, steps=None, online_steps=0, epochs=1), ValueError, "epochs requires a single process"),
    (prepare_cluster([LOG], steps=5, validation=0.5), ValueError, "validation requires a single process, which logs"),
    (prepare_cluster(track=()), ValueError, "track must be ('tensorboard',) on a cluster, got ()"),
    (lambda folder: run_plan([], folder), ValueError, "a plan must contain at least one run, and each name only once"),
    (lambda folder: run_plan(plan_seeds(None, ONLINE, [1]) * 2, folder), ValueError, "and each name only once"),
    (start_plan_in_a_run, errors.CheckpointError, "contains a single run; use a different run directory"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS, ids=[message for *_, message in REFUSALS])
def test_unusable_values_raise(call, error, message, tmp_path):
    with pytest.raises(error, match=re.escape(message)):
        call(tmp_path)
