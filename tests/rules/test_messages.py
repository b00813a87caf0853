"""The rule of messages: a mistake on the command line gets one sentence on stderr, in the words of the command line."""

import re
import shlex
import socket

import internals
import pytest

from rlds2reverb import errors
from rlds2reverb.cli import number_types, run
from rlds2reverb.datasets.transforms import REWARD_RECIPES
from rlds2reverb.learners.algorithms import ALGORITHMS
from rlds2reverb.system.sealed_files import load_json, save_json
from rlds2reverb.training.environment_spec import describe_env

TRAIN_WITHOUT_STEPS = "train --algo iql --data HOPPER --run-dir run"
TRAIN = f"{TRAIN_WITHOUT_STEPS} --steps 1"
CONVERT = "convert HOPPER --out out"
#: A command line, its exit code, and a part of its message.
MISTAKES = [
    ("trian", 1, "there is no command 'trian'; did you mean 'train'?"),
    ("Train", 1, "did you mean 'train'?"),
    ("cluster trian", 1, "did you mean 'train'?"),
    ("train", 1, "missing option '--data'"),
    ("convert", 1, "missing argument 'SRC...'"),
    ("train --algo IQL --data HOPPER --run-dir run", 1, "--algo must be one of .*, got 'IQL'; did you mean 'iql'?"),
    ("train --algo iqll --data HOPPER --run-dir run", 1, "did you mean 'iql'?"),
    ("train --algo dqn --data HOPPER --run-dir run", 1, "dqn requires discrete actions, .* use one of awac"),
    ("agents IQL", 1, "did you mean 'iql'?"),
    ("agents nomodule:Agent", 1, "there is no module 'nomodule'"),
    (f"{TRAIN} --stpes 5", 1, "there is no option --stpes; did you mean .*--steps"),
    (f"{TRAIN_WITHOUT_STEPS} --steps 1.5", 1, "--steps must be an integer >= 0, got '1.5'"),
    (f"{TRAIN_WITHOUT_STEPS} --steps 1e400", 1, "--steps must be an integer >= 0, got '1e400'"),
    (f"{TRAIN_WITHOUT_STEPS} --steps ''", 1, "--steps must be an integer >= 0, got ''"),
    (f"{TRAIN} --seed -1", 1, "--seed must be an integer >= 0 and <= 2,147,483,647, got '-1'"),
    (f"{TRAIN} --seed 3e9", 1, "--seed must be an integer"),
    (f"{TRAIN} --gamma 2", 1, "--gamma must be a number >= 0 and <= 1, got '2'"),
    (f"{TRAIN} --gamma nan", 1, "--gamma must be a number"),
    (f"{TRAIN} --top-percent 0", 1, "--top-percent must be a number > 0 and <= 100, got '0'"),
    (f"{TRAIN} --set expectile", 1, "--set must be NAME=VALUE such as alpha=2.5, got 'expectile'"),
    (f"{TRAIN} --set expectil=1", 1, "iql has no hyperparameter 'expectil'; did you mean 'expectile'?"),
    (f"{TRAIN} --set gamma=0.9", 1, r"the hyperparameter 'gamma' cannot be set, .* \(--gamma\)$"),
    (f"{TRAIN} --preset iql-antmase", 1, "--preset: unknown preset 'iql-antmase'; did you mean 'iql-antmaze'?"),
    (f"{TRAIN} --config nofile.gin", 1, "--config: file 'nofile.gin' does not exist"),
    (f"{TRAIN} --config folder", 1, "--config: file 'folder' is a directory"),
    (f"{TRAIN} --env Hoper-v5", 1, "Gymnasium has no environment 'Hoper-v5'; did you mean 'Hopper-v5'?"),
    (f"{TRAIN} --env ''", 1, "Gymnasium has no environment ''; use an id such as Hopper-v5"),
    (f"{TRAIN} --reward nothing", 1, "--reward: the reward recipe must be .*, got 'nothing'"),
    (f"{TRAIN} --action-bounds 1 -1", 1, "--action-bounds must be two numbers, the minimum first"),
    (f"{TRAIN} --hook x", 1, "--hook must be written as 'my_module:MyHook', got 'x'"),
    (f"{TRAIN} --hook nomodule:Hook", 1, "there is no module 'nomodule'"),
    (f"{TRAIN} --track wandbb", 1, "--track contains the unknown tracker 'wandbb'; did you mean 'wandb'?"),
    (f"{TRAIN.replace('HOPPER', 'localhost:1')} --split a", 1, "--split requires a dataset; the items of a table are"),
    (f"{TRAIN.replace('HOPPER', 'none')} --split a", 1, r"--split requires a dataset \("),
    (f"{TRAIN} --seeds 2 --seed 3", 1, "pass only one of --seed and --seeds"),
    (
        f"{TRAIN} --online 10",
        1,
        r"--online must be greater than the 1,000 steps of the warm-up, got 10 \(--warmup-steps\)$",
    ),
    (f"{TRAIN} --env none --drop-field nofield", 1, "there is no field 'nofield' to drop"),
    (
        "train --algo iql --data '' --run-dir run",
        1,
        "there is no ''; pass a bag of ROS 2 or an MCAP file, an OGBench file, .*, a D4RL file, .*, a D4RL name \\(hopper-medium-v2\\), .*, or a pattern",
    ),
    ("train --algo iql --data folder --run-dir run", 2, "folder contains no dataset .*; pass .* a D4RL file"),
    ("train --algo iql --data note.txt --run-dir run", 2, "note.txt is not an HDF5 file"),
    ("train --algo iql --data none --run-dir run", 1, r"requires a number of steps to collect \(--online\)$"),
    ("train --algo iql --data HOPPER --run-dir note.txt", 1, "--run-dir: directory 'note.txt' is a file"),
    ("convert HOPPER --out ''", 1, "--out must be a path, got ''"),
    ("convert HOPPER --out note.txt", 1, "--out note.txt exists and was not written by rlds2reverb"),
    ("convert HOPPER --out note.txt/out", 1, "cannot use '.*note.txt/out.partial': Not a directory"),
    ("convert HOPPER --out localhost:99999", 1, "--out: the address must be HOST:PORT"),
    ("convert HOPPER --out localhost:1 --timeout 1", 75, "no Reverb server answered at localhost:1"),
    ("convert HOPPER --out localhost:1 --timeout 0", 1, "--timeout must be a number > 0, got '0'"),
    ("convert localhost:8000 --out out", 1, "SRC must be a dataset, got the server 'localhost:8000'"),
    ("convert HOPPER --format rlds", 1, "missing option '--out'"),
    ("convert HOPPER --format d4rl --out folder", 1, "exists already; pass a new path"),
    (
        "convert PENDULUM --out out --clip-actions",
        1,
        r"--clip-actions requires the bounds .*; set .* \(--action-bounds",
    ),
    (f"{CONVERT} --save-statistics nofolder/s.json", 1, "--save-statistics: the directory 'nofolder' does not exist"),
    (f"{CONVERT} --sampler prioritised", 1, "--sampler: selector must be .*; did you mean 'prioritized'?"),
    (f"{CONVERT} --rate-limiter min_size", 1, "--rate-limiter: rate limiter must be min_size:N"),
    (f"{CONVERT} --table a --table a", 1, "--table must be one or more tables with different names"),
    (f"{CONVERT} --max-size 10", 1, r"the smallest table holds 10; use a larger one \(--max-size\)$"),
    ("serve HOPPER --max-size 10", 1, r"use a larger one, or let .* \(--max-size or --allow-eviction\)$"),
    (f"{CONVERT} --gamma 0.9", 1, "--gamma requires --n-step"),
    (f"{CONVERT} --load extra_fields=qpos2", 2, r"has no 'infos/qpos2'; fix the name \(--load extra_fields\)$"),
    (f"{CONVERT} --load max_episode_steps=-4", 1, "--load max_episode_steps must be an integer >= 1, got '-4'"),
    ("convert nofile*.hdf5 --out out", 1, "no file matches 'nofile.*.hdf5'"),
    ("serve HOPPER --port 0", 1, "--port must be an integer >= 1 and <= 65,535, got '0'"),
    ("serve HOPPER --port PORT", 1, "port .* is in use"),
    (
        "validate NO_TIMEOUTS",
        2,
        r"limit or split the episodes \(--load max_episode_steps or --load split_at_discontinuity\)$",
    ),
    ("validate localhost:8000", 1, "SRC must be a dataset, got the server"),
    ("validate HOPPER --max-errors -1", 1, "--max-errors must be an integer >= 0"),
    ("inspect nofile.hdf5", 1, "there is no file 'nofile.hdf5'"),
    ("inspect HOPPER --report page.txt", 1, "--report: the file must end with .html or .htm, got 'page.txt'"),
    ("inspect HOPPER --report nofolder/page.html", 1, "--report: the directory 'nofolder' does not exist"),
    ("inspect HOPPER --reference-returns note.txt", 1, "--reference-returns must be two numbers or d4rl for a dataset"),
    ("inspect HOPPER --film", 1, "--film requires training runs and --report"),
    ("eval norun", 1, "RUN: path 'norun' does not exist"),
    ("eval note.txt --env Pendulum-v1", 1, "note.txt is not a valid ONNX file"),
    ("export folder --out note.txt", 1, "note.txt exists already; pass a new path, or delete it first"),
    ("export folder --out a.onnx", 1, "folder must be the directory of a training run"),
    ("eval folder", 1, "folder must be the directory of a training run"),
    ("eval LAMBDA_RUN", 1, "<lambda> cannot be imported; pass the id of an environment, .* \\(--env\\)"),
    ("record Pendulm-v1 --out out.hdf5", 1, "Gymnasium has no environment 'Pendulm-v1'; did you mean 'Pendulum-v1'?"),
    ("record Pendulum-v1 --out out.hdf5 --which best", 1, "--which requires a --policy of a training run"),
    ("record Pendulum-v1 --out out.hdf5 --target-return 3", 1, "requires a --policy of decision.transformer"),
    ("record Pendulum-v1 --out note.txt", 1, "note.txt exists already"),
    ("record Pendulum-v1 --out out.hdf5 --epsilon 2", 1, "--epsilon must be a number >= 0 and <= 1, got '2'"),
    ("serve nofolder", 1, "there is no path 'nofolder'"),
    ("serve --checkpoint-root note.txt/x", 1, "cannot use 'note.txt/x/checkpoints': Not a directory"),
    ("plot folder --out x.pdf", 1, "--out: the file must end with .png or .svg, got 'x.pdf'"),
    ("serve --port x", 1, "--port must be an integer >= 1 and <= 65,535, got 'x'"),
]
#: Words with underscores that are values instead of arguments.
VALUES = {*ALGORITHMS, *REWARD_RECIPES, "min_size", "max_samples_per_insert", "sample_to_insert_ratio"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data):
    """A folder with a text file, an empty folder and a run that was evaluated in a function; and paths by name."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "folder").mkdir()
    (folder / "note.txt").write_text("a note")
    (folder / "run_of_a_function/policy").mkdir(parents=True)
    (folder / "run_of_a_function/policy/saved_model.pb").touch()
    described = {"environment": "<lambda>", "environment_spec": describe_env(lambda: None)}
    save_json(folder / "run_of_a_function/config.json", described)
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield (
            folder,
            {
                "HOPPER": data / "d4rl/hopper_medium-v2.hdf5",
                "PENDULUM": data / "d4rl/pendulum_mixed-v2.hdf5",
                "NO_TIMEOUTS": data / "malformed/hdf5/missing_timeouts.hdf5",
                "LAMBDA_RUN": folder / "run_of_a_function",
                "PORT": listener.getsockname()[1],
            },
        )


@pytest.mark.parametrize(("line", "code", "expected"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_mistakes_get_one_sentence(line, code, expected, folder, capfd, monkeypatch):
    path, names = folder
    monkeypatch.chdir(path)
    monkeypatch.setenv("COLUMNS", "1000")
    before = sorted(path.rglob("*"))
    assert run([str(names.get(word, word)) for word in shlex.split(line)]) == code
    *others, message = capfd.readouterr().err.strip().splitlines()
    assert not any(word in line for line in others for word in ("error:", "Traceback")), others
    assert message.startswith("error: ") and re.search(expected, message), message
    assert "Errno" not in message and not re.search(r"[.?] [A-Z]", message), message
    named = re.sub(r"'[^']*'|\S*[./:]\S*|--load \w+", "", message)
    arguments = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b[a-z_]+=(?=\s|$)", named)) - VALUES
    assert not arguments, message
    assert sorted(path.rglob("*")) == before


def test_integers_may_have_an_exponent():
    for text, expected in (("1e4", 10_000), ("2.0", 2), (" 7", 7)):
        assert number_types.at_least_1.convert(text, None, None) == expected
    assert type(number_types.at_least_1.convert("1e4", None, None)) is int
    assert number_types.seconds.convert("0.5", None, None) == 0.5


@pytest.mark.parametrize("value", [True, ...])
def test_texts_in_files_of_other_processes_name_the_options_of_the_command_line(value, tmp_path, monkeypatch):
    monkeypatch.setattr(errors, internals.MESSAGES, {})
    message = errors.Message('ä, allow the "download"', about="data", download=value)
    save_json(tmp_path / "a.json", {"warnings": [f"hopper: {message}"]})
    getattr(errors, internals.MESSAGES).clear()
    loaded = load_json(tmp_path / "a.json")
    assert loaded == {"warnings": [f"hopper: {message}"]}
    shown = errors.rename_arguments(*loaded["warnings"], lambda name, value: f"--{name}")
    assert shown == 'hopper: --data ä, allow the "download" (--download)'
