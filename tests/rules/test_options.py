"""The rule: an option has an effect or is an error; nothing that a user asks for is ignored in silence."""

import functools
import inspect
import itertools
import re
from dataclasses import replace
from pathlib import Path

import click
import h5py
import numpy as np
import pytest
from command_parameters import list_parameters
from properties import mark_slow_except
from reference_impls import episode, rlds_dataset
from robot_files import TOPICS, write_aloha, write_bag

from rlds2reverb import (
    IngestOptions,
    IngestWarning,
    SpecMismatchError,
    TableConfig,
    TrajectoryEpisodes,
    TrajectoryWindows,
    evaluate_offline,
    ingest,
    load,
    summarize,
    write_dataset,
)
from rlds2reverb.adders import InitialPriorities, NStep, StepWindows
from rlds2reverb.cli import run
from rlds2reverb.datasets import Format, Source, register_format
from rlds2reverb.datasets.loading import FORMATS
from rlds2reverb.datasets.steps.stores import build_store
from rlds2reverb.replay import BufferConfig
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.config_validation import describe_unused
from rlds2reverb.training.sources import open_data
from rlds2reverb.training.training import Training
from rlds2reverb.types.episodes import Episode

ROWS = {
    "observations": np.arange(200.0)[:, None],
    "next_observations": np.arange(1.0, 201)[:, None],
    "actions": np.zeros((200, 1)),
    "rewards": np.ones(200),
    "terminals": np.zeros(200, bool),
    "timeouts": np.isin(np.arange(200), (99, 199)),
    "infos/qpos": np.zeros((200, 2)),
}
ROWS["next_observations"][3] = 400  # A discontinuity.
LOG = {
    "observations": np.arange(4.0),
    "next_observations": np.arange(1.0, 5),
    "actions": np.zeros(4),
    "rewards": np.ones(4),
}
#: Begins in the final observation of the other one.
LATER_LOG = {**LOG, "observations": np.arange(4.0, 8), "next_observations": np.arange(5.0, 9)}
#: Without those that other tests register.
BUILT_IN = tuple(FORMATS)
#: A value of each option of `load` that has an effect on the datasets below.
VALUES = {
    "split": "valid",
    "extra_fields": ["qpos"],
    "max_episode_steps": 2,
    "split_at_discontinuity": True,
    "independent_rows": True,
    "autoreset": "next_step",
    "last_step": "boundary",
    "missing": {"reward": 1.0},
    "image_decoding": False,
    "frame_stack": 2,
    "done": "truncated",
    "cameras": ["wrist"],
    "tolerance_s": 0.01,
    "topics": {**TOPICS, "rate": 5},
    "data_dir": "elsewhere",
    "download": True,
}
#: Options that a format requires.
REQUIRED = {"a bag of ROS 2 or an MCAP file": {"topics": TOPICS}}


@pytest.fixture(scope="module")
def sources(tmp_path_factory, data):
    """Provides a dataset of each format with options, by the format's name."""
    folder = tmp_path_factory.mktemp("formats")
    with h5py.File(folder / "d4rl.hdf5", "w") as file:
        for name, column in ROWS.items():
            file[name] = column
    with h5py.File(folder / "robomimic.hdf5", "w") as file:
        for number, name in itertools.product(range(2), ("obs/x", "next_obs/x", "actions", "rewards", "dones")):
            file[f"data/demo_{number}/{name}"] = np.arange(3.0) + ("next" in name)
            if name == "dones":
                file[f"data/demo_{number}/{name}"][...] = [0, 0, 1]
        file["mask/valid"] = np.array([b"demo_1"])
    encoded = load(data / "rlds/physics_rlds/pendulum_pixels/1.0.0", image_decoding=False)
    build_store(encoded, folder / "store", num_workers=0)
    (folder / ".ogbench").mkdir()
    (folder / ".ogbench/data").symlink_to(data / "formats/ogbench")
    tfds = data / "formats/rlds/a4/nested_cameras/1.0.0"
    ogbench = data / "formats/ogbench/pointmaze-medium-navigate-v0-val.npz"
    neorl = data / "formats/neorl/Hopper-v3-low-2-val-noise.npz"
    return {
        "an OGBench file": ogbench,
        "an OGBench name": "pointmaze-medium-navigate-v0",
        "a dict of OGBench columns": dict(np.load(ogbench)),
        "a NeoRL file": neorl,
        "a folder of DQN replay logs": data / "formats/atari/replay_logs",
        "a dict of NeoRL columns": dict(np.load(neorl)),
        "a D4RL file": folder / "d4rl.hdf5",
        "a robomimic file": folder / "robomimic.hdf5",
        "an ALOHA file": write_aloha(folder / "aloha") / "episode_0.hdf5",
        "a folder of ALOHA episodes": folder / "aloha",
        "a bag of ROS 2 or an MCAP file": write_bag(folder / "bag"),
        "a directory prepared by TFDS": tfds,
        "a Minari directory": data / "minari/classic/pendulum-dict/dev-v0",
        "a store": folder / "store",
        "a LeRobot directory": data / "formats/lerobot/v2.1/c1",
        "a D4RL name": "hopper-medium-v2",
        "a Minari name": "classic/pendulum-dict/dev-v0",
        "a TFDS name": "nested_cameras",
        "a dict of D4RL columns": ROWS,
        "an RLDS tf.data.Dataset": rlds_dataset([episode(3, terminal=True)]),
        "episodes in memory": [{**LOG, "terminated": True}, {**LATER_LOG, "terminated": True}],
    }


def fingerprint(source):
    return summarize(source).fingerprint


@pytest.fixture(scope="module")
def unchanged(sources):
    """Provides a function that returns the fingerprint of a dataset loaded without options."""
    return functools.cache(lambda name: fingerprint(load(sources[name], **REQUIRED.get(name, {}))))


@pytest.mark.parametrize("file_format", BUILT_IN, ids=str)
def test_options_of_other_formats_are_an_error(file_format, monkeypatch):
    monkeypatch.setattr("rlds2reverb.datasets.loading.FORMATS", [replace(file_format, matches=lambda _: True)])
    for option in VALUES.keys() - file_format.options:
        with pytest.raises(ValueError, match=rf"^{option}=.* does not apply to {file_format.name}"):
            load(object(), **{option: VALUES[option]})


@pytest.mark.parametrize(
    ("name", "option"),
    [
        # A TFDS name is opened as the directory of its dataset.
        pytest.param(file_format.name, option, marks=[pytest.mark.slow] if file_format.name == "a TFDS name" else [])
        for file_format in BUILT_IN
        for option in file_format.options
        # Without a network, there is nothing to download.
        if file_format.name != "a MinariDataset" and option != "download"
    ],
)
def test_each_option_of_a_format_has_an_effect(sources, unchanged, name, option, data, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data / "formats/rlds/a4"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(data / "minari"))
    monkeypatch.setenv("HOME", str(sources["a D4RL file"].parent))  # The parent of OGBench's directory.
    source, value = sources[name], VALUES[option]
    try:
        changed = fingerprint(load(source, **{option: value}))
    except (FileNotFoundError, ValueError) as error:
        assert name == "a D4RL name" or (f"{option}={value}" if option == "tolerance_s" else "".join(value)) in str(
            error
        )  # Names what the option asks for.
    else:
        assert changed != unchanged(name)


def test_options_of_an_open_source_are_an_error():
    with pytest.raises(ValueError, match="split='train' does not apply to a Source, which is open already"):
        load(load([{**LOG, "terminated": True}]), split="train")


def test_declared_options_are_the_arguments_of_load():
    arguments = {
        name
        for name, parameter in inspect.signature(load).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    about_formats = arguments - {"mapping", "on_invalid"}
    assert set(VALUES) == about_formats == {option for file_format in BUILT_IN for option in file_format.options}


def test_robomimic_split_selects_the_demonstrations_of_a_filter_key(sources):
    path = sources["a robomimic file"]
    assert (len(list(load(path))), len(list(load(path, split="valid")))) == (2, 1)
    with pytest.raises(ValueError, match="'mask/train' does not exist; use one of: valid"):
        load(path, split="train")


def test_documentation_lists_the_options_of_each_format():
    text = (Path(__file__).parents[2] / "docs/formats.md").read_text()
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]*) \|$", text.partition("## Options of `load`")[2].partition("\n## ")[0], re.M
    )
    listed = {name.strip(): tuple(re.findall(r"`(\w+)`", options)) for name, options in rows[1:]}
    assert listed == {file_format.name: file_format.options for file_format in BUILT_IN if file_format.options}


def test_help_lists_the_formats_of_each_option(capsys):
    run(["validate", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    run(["validate", "x", "--load", "help"])
    load_text = " ".join(capsys.readouterr().out.split())
    for option in VALUES:
        titles = [file_format.title for file_format in BUILT_IN if file_format.title and option in file_format.options]
        if option in ("split", "cameras"):
            families = [title for title in titles if title.removesuffix(" names") not in titles or "names" not in title]
            assert re.search(rf"--{option.removesuffix('s')}( \S+)? {', '.join(families)}[:,]", help_text), (
                option,
                titles,
            )
        else:
            (text,) = re.findall(rf" {option}=\S+ (.*?)(?: \w+=|$)", load_text)
            formats = text.partition(" only: ")[0].replace("RLDS", "TFDS")
            assert all(title.removesuffix(" names") in formats for title in titles), (option, titles)


def test_command_line_names_the_option_that_does_not_apply(sources, capsys):
    assert run(["validate", str(sources["a D4RL file"]), "--split", "valid"]) == 1
    assert "--split valid does not apply to a D4RL file" in capsys.readouterr().err


def test_registered_format_is_tried_first_and_takes_its_options(tmp_path):
    path = tmp_path / "x.demo"
    path.write_text("")

    def open_demo(path, *, split="train"):
        return Source(f"{path.name} {split}", "demo", lambda: iter([Episode(episode(2, terminal=True), 0)]))

    def matches(location):
        return isinstance(location, Path) and location.suffix == ".demo"

    register_format(Format("a demo", matches, open_demo, ("split",)))
    try:
        assert load(path, split="x").name == "x.demo x" and load(path).name == "x.demo train"
        with pytest.raises(ValueError, match=r"max_episode_steps=3 does not apply to a demo \(its options: split\)"):
            load(path, max_episode_steps=3)
    finally:
        del FORMATS[0]


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("d4rl", {"shard_bytes": 5}),
        ("minari", {"shard_bytes": 5}),
        ("rlds", {"recompute_discounts": True}),
        ("minari", {"fps": 5}),
        ("d4rl", {"video": True}),
        ("lerobot", {"shard_bytes": 5}),
    ],
)
def test_options_of_other_written_formats_are_an_error(tmp_path, format, options):
    with pytest.raises(ValueError, match=rf"{next(iter(options))}=.* does not apply to the format '{format}'"):
        write_dataset([{**LOG, "terminated": True}], tmp_path / "x-v0", format=format, **options)


@pytest.mark.parametrize("options", [{"force": True}, {"allow_eviction": True}])
def test_options_of_servers_are_an_error_for_directories(tmp_path, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}=True has no effect on a directory"):
        ingest([{**LOG, "terminated": True}], tmp_path / "x", TableConfig("t"), options=IngestOptions(**options))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (IngestOptions, {"writer": "reverb", "chunk_length": 5}),
        (IngestOptions, {"writer": "reverb", "key_seed": 5}),
        (BufferConfig, {"kind": "episode", "window_sampling": "episodes"}),
        (BufferConfig, {"kind": "episode", "short_episodes": "pad"}),
        (InitialPriorities, {"kind": "td", "constant": 3.0}),
        (InitialPriorities, {"kind": "max", "eta": 0.5}),
        (InitialPriorities, {"kind": "return", "gamma": 0.5}),
        (InitialPriorities, {"kind": "constant", "highest": 9.0}),
        (lambda **options: summarize(load([{**LOG, "terminated": True}]), **options), {"is_d4rl": True}),
    ],
)
def test_options_without_effect_are_an_error(make, options):
    with pytest.raises(ValueError, match=f"{list(options)[-1]}=.* has no effect"):
        make(**options)


# --- fields that are left out are listed

TEXTS = {
    **LOG,
    "terminated": True,
    "language_instruction": np.array(["lift", "lift", "lift", "lift"], object),
    "phase": np.arange(4),
    "notes": {"text": np.array([b"a", b"b", b"c", b"d"], object), "step": np.arange(4)},
}
NO_STRINGS, NO_FIELD = "tables do not support strings", "items of {} do not contain it"


@pytest.mark.parametrize(
    "adder",
    mark_slow_except(
        [TrajectoryWindows(), NStep(1, 0.9)], [TrajectoryWindows(), TrajectoryEpisodes(), NStep(1, 0.9), StepWindows(2)]
    ),
)
def test_fields_that_items_do_not_contain_are_listed_with_the_reason(tmp_path, adder):
    strings = dict.fromkeys(["language_instruction", "notes/text"], NO_STRINGS)
    others = dict.fromkeys(["phase", "notes/step"], NO_FIELD.format(type(adder).__name__))
    expected = {**strings, **(others if isinstance(adder, (TrajectoryWindows, TrajectoryEpisodes)) else {})}
    with pytest.warns(IngestWarning, match="the step field .* is left out"):
        report = ingest([TEXTS, TEXTS], tmp_path / "x", adder=adder)
    assert report.left_out_fields == expected and report.items
    assert f"the step field 'language_instruction' is left out: {NO_STRINGS}" in report.notes


def test_training_lists_the_fields_that_it_does_not_use():
    logs = [
        {**TEXTS, "actions": np.zeros((4, 1)), "observations": np.zeros((4, 1)), "next_observations": np.zeros((4, 1))}
    ]
    config = TrainingConfig("bc", env=None)
    notes = open_data(logs, config).notes
    assert any("'language_instruction', 'notes', 'phase' are left out" in note for note in notes)
    notes = open_data(
        [{name: column for name, column in logs[0].items() if name not in ("notes", "phase")}], config
    ).notes
    assert any("the step field 'language_instruction' is left out: agents" in note for note in notes)


@pytest.mark.parametrize(
    ("options", "sentences"),
    [
        ({"env": "Hopper-v5", "eval_every": 7, "n_step": 3, "gamma": 0.9, "reward": "scale:2"}, []),
        (
            {"env": "Hopper-v5", "num_envs": 2, "update_every": 5},
            [f"{name} has no effect without an online phase" for name in ("update_every", "num_envs")],
        ),
        ({"env": "Hopper-v5", "num_envs": 2, "online_steps": 2_000}, []),
        ({"env": None, "eval_episodes": 3}, ["eval_episodes has no effect without an environment"]),
    ],
)
def test_training_lists_the_options_without_effect(options, sentences):
    assert describe_unused(TrainingConfig("td3_bc", **options)) == sentences


def test_options_of_rewards_have_no_effect_on_cloning():
    def describe(**options):
        return describe_unused(TrainingConfig("bc", env=None, **options))

    sentence = "has no effect on bc, which does not learn from rewards"
    assert describe(n_step=3, reward="scale:2") == [f"n_step {sentence}", f"reward {sentence}"]
    assert describe(gamma=0.9, reward="scale:2", top_percent=10.0) == [f"gamma {sentence}"]
    assert describe(top_percent=10.0) == []


def test_discount_factor_has_no_effect_on_windows():
    (sentence,) = describe_unused(TrainingConfig("decision_transformer", env=None, gamma=0.9))
    assert sentence == "gamma has no effect on decision_transformer, whose returns are undiscounted"


def test_training_prints_the_options_without_effect(tmp_path, capsys):
    logs = [{**LOG, "actions": np.zeros((4, 1)), "terminated": True}]
    with Training(logs, TrainingConfig("bc", env=None, num_envs=2, batch_size=2), tmp_path / "run"):
        assert "num_envs has no effect without an online phase" in capsys.readouterr().err


def test_strings_in_observations_are_an_error(tmp_path):
    texts = {**LOG, "observations": {"place": np.arange(4.0), "text": np.array(["a"] * 4, object)}, "terminated": True}
    texts.pop("next_observations")
    with pytest.raises(SpecMismatchError, match="holds strings"):
        ingest([texts], tmp_path / "x")


def test_repeated_options_are_an_error_unless_all_values_count(capsys):
    num_refused = 0
    for names, option in list_parameters():
        if not isinstance(option, click.Option):
            continue
        values, again = [] if option.is_flag else ["1"] * option.nargs, (option.secondary_opts or option.opts)[0]
        if not option.multiple and (not option.is_flag or option.secondary_opts):
            assert run([*names, option.opts[0], *values, again, *values]) == 1
            assert f"{option.opts[0]} must be passed only once" in capsys.readouterr().err, names
            num_refused += 1
    assert num_refused > 130


def test_repeatable_options_and_flags_may_be_repeated(capsys):
    words = ["--method", "fqe", "--method", "wdr", "--json", "--json"]
    assert run(["ope", "missing", "--data", "x", *words]) == 1
    assert "'missing' does not exist" in capsys.readouterr().err


def test_behaviour_without_a_method_that_uses_it_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="behaviour='prob' has no effect on fqe; add a method that uses prob.*: dr, "):
        evaluate_offline("run", [LOG], "fqe", behaviour="prob")


def test_videos_of_a_dataset_without_images_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="video=True requires images with three channels"):
        write_dataset([{**LOG, "terminated": True}], tmp_path / "x", format="lerobot", video=True)
    assert not (tmp_path / "x").exists()
