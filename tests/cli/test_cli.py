"""Commands as a user sees them: output, JSON, exit codes; and a few in processes of their own."""

import contextlib
import errno
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys

import click
import h5py
import minari
import numpy as np
import pytest
import reverb
from rlds2reverb.cli import run
from rlds2reverb.cli.main import cli

HOPPER = "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5"


def call(capsys, *arguments):
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def rows_file(tmp_path):
    """Writes a D4RL file of 400 rows that count up, in episodes of 100; the third column is 7 throughout."""

    def write(*, jump_at=(), shuffled=False):
        now = np.arange(400, dtype=np.float64) + 10
        following = now + 1
        following[list(jump_at)] += 0.5
        rows = {
            "observations": np.stack([now, now, np.full(400, 7.0)], 1),
            "next_observations": np.stack([now + 1, following, np.full(400, 7.0)], 1),
            "actions": np.sin(now)[:, None],
            "rewards": now,
            "terminals": np.zeros(400, bool),
            "timeouts": np.arange(400) % 100 == 99,
        }
        order = np.random.default_rng(0).permutation(400) if shuffled else slice(None)
        with h5py.File(tmp_path / "rows.hdf5", "w") as file:
            for name, column in rows.items():
                file[name] = column[order]
        return tmp_path / "rows.hdf5"

    return write


# --- inspect


def test_inspect_says_what_is_in_a_file(data, capsys):
    code, out, err = call(capsys, "inspect", data / HOPPER, "--d4rl-score")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= 80
    assert "2 (2 terminal, 0 truncated, 0 open)" in out and "911 (913 steps with the final observations)" in out
    assert "D4RL's constants for its own hopper" in out and "['observation']  float32 [11]  none" in out
    assert re.search(r"xxh128 [0-9a-f]{32}", out)


def test_inspect_prints_json(data, capsys):
    code, out, _ = call(capsys, "inspect", data / HOPPER, "--json", "--reference-returns", 0, 1000)
    summary = json.loads(out)
    assert code == 0 and summary["episodes"] == 2 and summary["transitions"] == 911
    assert summary["score"] == pytest.approx(summary["returns"]["mean"] / 10)


def test_inspect_reads_what_is_asked_for(data, capsys):
    code, out, _ = call(capsys, "inspect", data / HOPPER, "--info", "qpos", "--json")
    assert code == 0 and "['qpos']" in [field["name"] for field in json.loads(out)["fields"]]
    code, out, _ = call(
        capsys, "inspect", data / "malformed/hdf5/missing_timeouts.hdf5", "--max-episode-steps", 10, "--json"
    )
    assert code == 0 and json.loads(out)["lengths"]["max"] == 10


def test_inspect_warns_of_the_fault_of_the_tfds_builder(data, capsys):
    _, _, err = call(capsys, "inspect", data / "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0")
    assert "warning:" in err and "rebuild from the D4RL HDF5 file" in err


@pytest.mark.parametrize("name", ["d4rl/hopper_medium-v2.hdf5", HOPPER])
def test_no_score_of_d4rl_is_given_for_a_file_because_of_its_name(data, capsys, name):
    _, out, _ = call(capsys, "inspect", data / name)
    assert "score" not in out
    _, out, _ = call(capsys, "inspect", data / "rlds_prepared/d4rl_mujoco_hopper/v0-medium/1.2.0")
    assert "D4RL's constants for its own hopper" in out


def test_inspect_and_validate_know_our_own_directories(data, capsys, tmp_path):
    out_directory = tmp_path / "out"
    assert call(capsys, "convert", data / HOPPER, "--out", out_directory, "--sampler", "uniform")[0] == 0
    code, out, err = call(capsys, "inspect", out_directory)
    assert (code, err) == (0, "") and "a directory of rlds2reverb, to start servers from" in out
    assert "hopper_medium-v2.hdf5, 2 episodes read" in out and "911 in each table" in out and "sampler uniform" in out
    document = json.loads(call(capsys, "inspect", out_directory, "--json")[1])
    assert document["items"] == 911 and document["tables"][0]["name"] == "replay"
    code, out, _ = call(capsys, "validate", out_directory)
    assert code == 0 and "valid, every file is as it was written" in out
    (chunks,) = out_directory.glob("checkpoints/*/chunks.tfrecord")
    content = bytearray(chunks.read_bytes())
    content[100] ^= 1
    chunks.write_bytes(content)
    code, out, err = call(capsys, "validate", out_directory)
    assert code == 2 and "chunks.tfrecord is damaged" in err and "INVALID" in out
    assert json.loads(call(capsys, "validate", out_directory, "--json")[1])["valid"] is False


def test_nothing_is_downloaded_without_download(data, capsys, tmp_path, monkeypatch):
    asked = []

    def download(name):
        asked.append(name)
        shutil.copytree(data / "minari" / name, tmp_path / name)

    monkeypatch.setattr(minari, "download_dataset", download)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    code, _, err = call(capsys, "inspect", "mujoco/hopper/dev-v0")
    assert (code, asked) == (1, []) and "on the command line --download" in err
    for _ in range(2):  # the second time it is there
        code, out, _ = call(capsys, "convert", "mujoco/hopper/dev-v0", "--download", "--out", tmp_path / "out")
        assert (code, asked) == (0, ["mujoco/hopper/dev-v0"]) and "episodes     8\n" in out


# --- validate


@pytest.mark.parametrize("name", ["hdf5/ok_control.hdf5", "rlds/ok_control"])
def test_valid_data_pass(data, capsys, name):
    code, out, err = call(capsys, "validate", data / "malformed" / name)
    assert (code, err) == (0, "") and "valid (" in out and "0 problems" in out


def test_invalid_data_are_listed_with_exit_code_2(data, capsys):
    path = data / "malformed/hdf5/nan_reward.hdf5"
    code, out, _ = call(capsys, "validate", path)
    assert code == 2 and "step['reward'] holds NaN. (episode 1, step 14, field reward)" in out and "INVALID" in out
    code, out, _ = call(capsys, "validate", path, "--json")
    found = json.loads(out)
    assert code == 2 and not found["valid"] and found["num_problems"] == 1
    assert found["problems"] == [{"episode": 1, "step": 14, "field": "reward", "message": "step['reward'] holds NaN."}]


def test_validate_reports_the_warnings_of_the_source(data, capsys):
    path = data / "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0"
    code, out, err = call(capsys, "validate", path)
    assert code == 0 and "rebuild from the D4RL HDF5 file" in err and "1 warning)" in out
    (warning,) = json.loads(call(capsys, "validate", path, "--json")[1])["warnings"]
    assert "rebuild from the D4RL HDF5 file" in warning


def test_refused_data_are_exit_code_2_as_well(data, capsys):
    code, out, err = call(capsys, "validate", data / "malformed/hdf5/external_link_passwd.hdf5")
    assert code == 2 and "is a link into another file" in err and "INVALID" in out
    code, out, _ = call(capsys, "validate", data / "malformed/rlds/bad_json", "--json")
    assert code == 2 and "is not valid JSON" in json.loads(out)["refused"]


def test_validate_can_cut_at_the_terminal(data, capsys):
    path = data / "rlds_prepared/robomimic_ph/lift_ph_low_dim/1.0.1"
    assert call(capsys, "validate", path)[0] == 2
    assert call(capsys, "validate", path, "--cut-at-terminal")[0] == 0


def test_an_open_end_is_valid_and_noted(data, capsys):
    path = data / "malformed/hdf5/unclosed_tail.hdf5"
    code, out, _ = call(capsys, "validate", path)
    assert (
        code == 0
        and "note: open ends in 1 episode; kept as truncated" in out
        and "valid, with notes (4 episodes, 56 steps, 0 problems, 1 note)" in out
    )
    assert json.loads(call(capsys, "validate", path, "--json")[1])["unterminated"] == 1


def test_resets_without_a_flag_are_valid_and_noted_and_refused_when_they_are_many(capsys, rows_file):
    path = rows_file(jump_at=[149, 224])
    code, out, err = call(capsys, "validate", path)
    assert (code, err) == (0, "") and "valid, with notes (4 episodes, 404 steps, 0 problems, 1 note)" in out
    assert out.startswith("note: in 2 rows inside episodes next_observations is not the observation of the next row")
    assert "first in row 149 (episode 1)" in out and "--split-at-discontinuity" in out
    found = json.loads(call(capsys, "validate", path, "--json")[1])
    assert found["valid"] and (found["discontinuities"], found["dropped_last_transition"], len(found["notes"])) == (
        2,
        0,
        1,
    )
    code, out, _ = call(capsys, "validate", path, "--split-at-discontinuity")
    assert code == 0 and out.endswith("valid (6 episodes, 406 steps, 0 problems)\n")
    code, out, err = call(capsys, "validate", rows_file(jump_at=range(0, 55, 5)))
    assert code == 2 and "more than 1% of the rows" in err and "first in row 0 (episode 0)" in err
    assert "INVALID" in out and "1 problem" in out


def test_shuffled_rows_are_taken_one_by_one_when_asked_for(capsys, rows_file, tmp_path):
    path = rows_file(shuffled=True)
    code, out, err = call(capsys, "validate", path)
    assert code == 2 and "on the command line --independent-rows" in err and "INVALID" in out
    code, out, _ = call(capsys, "validate", path, "--independent-rows")
    assert code == 0 and out.endswith("valid (400 episodes, 800 steps, 0 problems)\n")
    code, out, err = call(capsys, "convert", path, "--independent-rows", "--out", tmp_path / "out")
    assert (code, err) == (0, "") and "400 in each table" in out
    code, _, err = call(
        capsys, "convert", path, "--independent-rows", "--max-episode-steps", 3, "--out", tmp_path / "other"
    )
    assert code == 1 and "independent_rows=True ends an episode after each row; leave out max_episode_steps" in err


def test_only_so_many_problems_are_listed(data, capsys):
    path = data / "rlds_prepared/robomimic_ph/lift_ph_low_dim/1.0.1"
    code, out, _ = call(capsys, "validate", path, "--max-problems", 1)
    assert code == 2 and len(out.splitlines()) == 3 and "more (--max-problems)" in out


# --- convert


@pytest.fixture
def server():
    server = reverb.Server([reverb.Table.queue("replay", 10_000), reverb.Table.queue("other", 10_000)], port=None)
    yield server
    server.stop()


def size(server, table="replay"):
    return server.localhost_client().server_info(timeout=10)[table].current_size


def test_convert_writes_to_a_running_server(data, capsys, server):
    code, out, err = call(capsys, "convert", data / HOPPER, "--to", f"localhost:{server.port}")
    assert (code, err) == (0, "") and size(server) == 911
    assert "911 in each table\n  an item      2 steps" in out and "steps/s" in out


def test_convert_reports_in_json_and_takes_its_options(data, capsys, server, tmp_path):
    statistics = tmp_path / "statistics.json"
    code, out, _ = call(
        capsys,
        "convert",
        data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5",
        *("--to", f"localhost:{server.port}", "--table", "replay", "--table", "other", "--sequence-length", 3),
        *("--stride", 2, "--cast-floats", "--normalize-observations", "--reward", "scale:0.5:1", "--clip-actions"),
        *("--save-statistics", statistics, "--json"),
    )
    report = json.loads(out)
    assert code == 0 and report["tables"] == ["replay", "other"]
    assert report["items"] == size(server) == size(server, "other") > 0
    saved = json.loads(statistics.read_text())
    assert (saved["reward_scale"], saved["reward_shift"], len(saved["observation_mean"])) == (0.5, 1.0, 11)
    assert report["statistics"] == saved and (saved["float_dtype"], saved["action_limit"]) == ("float32", 1 - 1e-5)


def test_notes_and_changes_are_printed_once(capsys, rows_file, tmp_path):
    options = ("--cast-floats", "--normalize-observations", "--clip-actions", "--reward", "iql_antmaze")
    path = rows_file(jump_at=[149])
    code, out, err = call(capsys, "convert", path, *options, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    out = " ".join(out.split())
    for sentence in (
        "note in 1 rows inside episodes next_observations is not",
        "note step['observation'] is constant at [2], and is normalised to zeros there",
        "changed floats cast to float32 changed (reward - 1) * 1 changed (observation - mean) / (std + 0.001) changed "
        "actions clipped to +-0.99999 ",
    ):
        assert out.count(sentence) == 1
    code, out, _ = call(capsys, "validate", path, *options)
    assert code == 0 and "note: step['observation'] is constant at [2]" in out and "0 problems, 2 notes)" in out


def test_a_warning_of_the_source_is_printed_once(data, capsys, tmp_path):
    path = data / "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0"
    code, out, err = call(capsys, "convert", path, "--out", tmp_path / "out")  # a Python warning would be an error
    assert code == 0 and err.count("rebuild from the D4RL HDF5 file") == 1 and "rebuild" not in out


def test_convert_writes_a_directory_once(data, capsys, tmp_path):
    arguments = ("convert", data / HOPPER, "--out", tmp_path / "out", "--sampler", "uniform", "--table", "t")
    code, out, err = call(capsys, *arguments)
    assert (code, err) == (0, "") and "911 in each table" in out
    assert re.search(r"about 1\.\d MB in the server", out)
    code, out, err = call(capsys, *arguments)
    assert (code, err) == (0, "") and "all was there" in out and "episodes from an earlier run are there already" in out
    code, _, err = call(capsys, *arguments, "--stride", 2)
    assert (
        code == 1
        and "written with other arguments: stride of adder TrajectoryWindows (--stride) was 1, is 2; give" in err
    )
    assert not (tmp_path / "out.partial").exists()
    code, _, err = call(capsys, "serve", "--from", tmp_path / "out", "--sampler", "fifo")
    assert code == 2 and "sampler of table 't' is stored as uniform, asked as fifo" in err
    code, _, err = call(capsys, "serve", "--from", tmp_path / "nowhere")
    assert code == 2 and "nowhere is not a directory; write one with ingest" in err


@pytest.mark.parametrize(
    ("options", "items", "said"),
    [
        (("--whole-episodes", "--layout", "packed", "--priority", "return"), 2, "a whole episode"),
        (("--padding", "tile", "--sequence-length", 3, "--chunk-length", 4), 913, "an item      3 steps"),
        (("--writer", "public"), 911, "an item      2 steps"),
        (("--n-step", 3, "--gamma", 0.9, "--layout", "packed"), 911, "a transition over 3 steps"),
        (("--key-seed", 1, "--no-resume", "--force"), 911, "an item      2 steps"),
    ],
)
def test_convert_makes_other_items(data, capsys, server, options, items, said):
    code, out, err = call(capsys, "convert", data / HOPPER, "--to", f"localhost:{server.port}", *options)
    assert (code, err) == (0, "") and size(server) == items and said in out


def test_a_disk_that_is_full_may_be_retried(data, capsys, tmp_path, monkeypatch):
    from rlds2reverb._writing import directory_destination

    def fail(self, name, array):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(directory_destination.DirectoryDestination, "_put", fail)
        code, _, err = call(capsys, "convert", data / HOPPER, "--out", tmp_path / "out")
    assert code == 75 and "no space left for" in err and "nothing is kept: free some and start again" in err
    assert list(tmp_path.iterdir()) == []
    assert call(capsys, "convert", data / HOPPER, "--out", tmp_path / "out")[0] == 0


def test_invalid_data_are_not_converted_unless_asked_for(data, capsys, server):
    path, to = data / "malformed/hdf5/nan_reward.hdf5", f"localhost:{server.port}"
    code, _, err = call(capsys, "convert", path, "--to", to)
    assert code == 2 and "holds NaN" in err and size(server) == 0
    code, out, err = call(capsys, "convert", path, "--to", to, "--on-invalid", "skip_episode")
    assert code == 0 and "1 invalid episodes were left out" in out and "holds NaN" in out


def test_a_server_that_does_not_answer_may_be_retried(data, capsys):
    code, _, err = call(capsys, "convert", data / HOPPER, "--to", "localhost:1", "--timeout", 1)
    assert code == 75 and "no Reverb server answered at localhost:1 within 1 s" in err


# --- wrong use


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "HOPPER", "--out", "x", "--port", "5"], "--port is for --serve"),
        (["convert", "HOPPER", "--out", "x", "--checkpoint-every", "5"], "--checkpoint-every is for --serve"),
        (["convert", "HOPPER", "--to", "localhost:1", "--checkpoint-every", "5"], "--checkpoint-every is for --serve"),
        (["convert", "HOPPER", "--serve", "--checkpoint-every", "5d"], "'5d' is not a duration above 0"),
        (["convert", "HOPPER", "--out", "x", "--timeout", "5"], "--timeout is for writing to a server"),
        (["convert", "HOPPER", "--out", "x", "--gamma", "0.9"], "--gamma is for --n-step"),
        (["convert", "HOPPER", "--out", "x", "--n-step", "0"], "Invalid value for '--n-step': 0 is not in the range"),
        (["convert", "HOPPER", "--out", "x", "--n-step", "3", "--stride", "2"], "--stride does not go with --n-step"),
        (
            ["convert", "HOPPER", "--to", "localhost:1", "--whole-episodes", "--stride", "2"],
            "--stride does not go with",
        ),
        (
            ["convert", "HOPPER", "--to", "localhost:1", "--priority", "high"],
            "Invalid value for '--priority': 'high' is not a priority",
        ),
        (["serve", "--from", "data", "--like", "HOPPER"], "give --from or --like, not both"),
        (["serve", "--force"], "--force is for --from"),
        (["convert", "HOPPER"], "give one of --to HOST:PORT, --serve and --out DIRECTORY"),
        (
            ["convert", "HOPPER", "--to", "localhost:1", "--max-size", "5"],
            "--max-size is for --serve and --out; a running server",
        ),
        (["convert", "HOPPER", "--to", "nonsense"], "expected host:port"),
        (
            ["convert", "HOPPER", "--to", "localhost:1", "--reward", "more"],
            "Invalid value for '--reward': 'more' is not a recipe, expected iql",
        ),
        (["convert", "HOPPER", "--serve", "--sampler", "best"], "selector is 'best'"),
        (["convert", "HOPPER", "--serve", "--rate-limiter", "x"], "rate limiter 'x' is not understood"),
        (["serve", "--split", "test"], "--split is for --like SRC"),
        (["validate", "HOPPER", "--drop-field", "reward"], "'reward' is what every step has"),
        (["inspect", "nothing.hdf5"], "there is no file 'nothing.hdf5'"),
        (["inspect"], "Missing argument 'SRC'"),
        (["nonsense"], "No such command 'nonsense'"),
        (["inspect", "HOPPER", "--colour"], "No such option"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_1(data, capsys, arguments, message):
    code, out, err = call(capsys, *(data / HOPPER if argument == "HOPPER" else argument for argument in arguments))
    assert code == 1 and out == "" and message in err and "Traceback" not in err


def test_names_are_shown_and_not_obeyed(data, capsys, tmp_path):
    path = tmp_path / "[x][bold]a\x1b[31m.hdf5"
    path.write_bytes((data / HOPPER).read_bytes())
    code, out, _ = call(capsys, "inspect", path)
    assert code == 0 and out.startswith("[x][bold]a\\x1b[31m.hdf5") and "\x1b" not in out


def test_statistics_are_saved_after_success_only(data, capsys, tmp_path):
    target = tmp_path / "s.json"
    arguments = ("--to", "localhost:1", "--timeout", 1, "--normalize-observations", "--save-statistics", target)
    assert call(capsys, "convert", data / HOPPER, *arguments)[0] == 75
    assert not target.exists()


def test_the_demo_refuses_what_it_cannot_compare(data, capsys):
    code, _, err = call(capsys, "demo", data / "tfds_fake/robomimic_ph/lift_low_dim.hdf5")
    assert code == 2 and "is a robomimic file; the demo compares with D4RL's columns" in err


def test_every_command_and_option_has_help(capsys):
    for name in cli.list_commands(None):
        command = cli.get_command(None, name)
        code, out, _ = call(capsys, name, "--help")
        assert code == 0 and "Usage: rlds2reverb" in out
        assert all(option.help for option in command.params if isinstance(option, click.Option)), name
    code, out, _ = call(capsys, "--help")
    assert code == 0 and "Exit codes: 0 done, 1 wrong use, 2 invalid data, 75" in out
    assert call(capsys, "--version")[1].startswith("rlds2reverb, version 0.1")


def test_wrong_options_are_refused_before_tensorflow_loads(data):
    wrong = [
        ("--n-step", "0"),
        ("--sequence-length", "0"),
        ("--stride", "-1"),
        ("--gamma", "1.5"),
        ("--timeout", "0"),
        ("--chunk-length", "0"),
        ("--max-size", "0"),
        ("--port", "70000"),
        ("--sampler", "best"),
        ("--remover", "prioritized:-1"),
        ("--rate-limiter", "min_size:x"),
        ("--priority", "-1"),
        ("--reward", "scale:x"),
        ("--to", "nonsense"),
        ("--max-episode-steps", "0"),
    ]
    program = """
import sys
from rlds2reverb.cli import run
for name, value in eval(sys.argv[3]):
    assert run(["convert", sys.argv[1], "--out", "x", name, value]) == 1
assert run(["convert", sys.argv[1], "--out", "x", "--n-step", "3", "--stride", "2"]) == 1
assert run(["convert", "nothing.hdf5", "--out", "x"]) == 1
assert run(["convert", sys.argv[1], "--out", sys.argv[2]]) == 1
print("tensorflow" in sys.modules)
"""
    occupied = data / "malformed"
    command = [sys.executable, "-c", program, str(data / HOPPER), str(occupied), repr(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    lines = done.stderr.splitlines()
    assert len(lines) == len(wrong) + 3
    for line, (name, _) in zip(lines, wrong, strict=False):
        assert line.startswith(f"error: Invalid value for '{name}': ")
    assert "there is no file 'nothing.hdf5'" in lines[-2]
    assert "malformed exists already and is not a directory of ours; give a new one" in lines[-1]


def test_json_is_given_for_errors_too(data, capsys):
    for arguments, exit_code, message in [
        (("inspect", "nothing.hdf5"), 1, "there is no file 'nothing.hdf5'"),
        (("inspect", data / "malformed/hdf5/text.hdf5"), 2, "text.hdf5"),
        (("convert", data / HOPPER, "--to", "localhost:1", "--timeout", "1"), 75, "no Reverb server answered"),
        (("convert", data / HOPPER), 1, "give one of --to"),
    ]:
        code, out, err = call(capsys, *arguments, "--json")
        document = json.loads(out)
        assert code == document["exit_code"] == exit_code
        assert message in document["error"] and document["error"] in err.replace("\n", " ")


def test_an_occupied_directory_is_wrong_use_and_an_empty_one_is_not(data, capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    code, _, err = call(capsys, "convert", data / HOPPER, "--out", tmp_path)
    assert code == 1 and "exists already and is not a directory of ours" in err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_help_of_convert_is_in_groups_and_fits_80_columns(capsys):
    _, out, _ = call(capsys, "convert", "--help")
    headings = re.findall(r"^(\w.*):$", out, re.M)
    assert headings == [
        "Where to",
        "What to read",
        "What to change",
        "Items",
        "Tables and the server (--serve, --out)",
        "Writing",
        "Other options",
    ]
    assert max(map(len, out.splitlines())) <= 80
    options = re.findall(r"^  (--[\w-]+)", out.split("Other options:")[0], re.M)
    assert len(set(options)) > 35 and len(out.split("Other options:")[1].strip().splitlines()) == 2


# --- processes of their own


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "rlds2reverb.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def finish_by_itself(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def until_serving(process):
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"serving on (localhost:\d+)", line):
            return found[1], lines
    pytest.fail("".join(lines))


def test_convert_and_serve_until_told_to_end_then_restore(data, tmp_path):
    """The whole way in real processes: convert, serve, inspect, end, start again from the checkpoint. No noise."""
    root = tmp_path / "root"
    process = start("convert", data / HOPPER, "--serve", "--checkpoint-root", root)
    address, lines = until_serving(process)
    assert "table 'replay': 911 of at most 2,147,483,647 items" in "".join(lines)
    seen = start("inspect", address, "--json")
    out, err = seen.communicate(timeout=60)
    (table,) = json.loads(out)["tables"]
    assert (err, table["items"], table["sampler"]) == ("", 911, "prioritized:0.6")
    assert table["signature"]["item['observation']"] == "float32 [2, 11]" or table["signature"]
    code, out, err = finish(process)
    assert code == 0 and "hopper_medium-v2.hdf5 converted" in out and "Traceback" not in err
    assert not [line for line in lines if "reverb/cc" in line or "Gym" in line or "tensorflow" in line.lower()]

    code, _, err = finish_by_itself(start("convert", data / HOPPER, "--serve", "--checkpoint-root", root))
    assert code == 1 and "has 911 items from the checkpoint already; give --append" in err

    process = start("serve", "--like", data / HOPPER, "--checkpoint-root", root)
    _, lines = until_serving(process)
    assert "table 'replay': 911 of at most" in "".join(lines)
    code, out, err = finish(process)
    assert (code, out) == (0, "") and "checkpoint " in err

    code, _, err = finish_by_itself(start("serve", "--checkpoint-root", root, "--max-size", 5))
    assert code == 2 and "max_size of table 'replay' is stored as 2147483647, asked as 5" in err


def test_a_terminal_shows_that_something_happens_while_tensorflow_loads(data, tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rlds2reverb.cli", "convert", str(data / HOPPER), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal
            while block := os.read(ours, 1000):
                shown += block
        os.close(ours)
        assert "converted" in process.stdout.read()
    assert b"loading TensorFlow and Reverb" in shown and b"[reverb/cc" not in shown


def test_convert_that_gets_sigterm_can_be_started_again(data, tmp_path):
    program = """
import os, signal, sys
from rlds2reverb._writing import directory_destination
from rlds2reverb.cli import run

write = directory_destination.DirectoryDestination.write
def write_and_get_sigterm(self, *arguments):
    write(self, *arguments)
    os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[3] == "killed":
    directory_destination.DirectoryDestination.write = write_and_get_sigterm
sys.exit(run(["convert", sys.argv[1], "--out", sys.argv[2]]))
"""
    codes, errors = [], []
    for kind in ("killed", "left alone"):
        command = [sys.executable, "-c", program, str(data / HOPPER), str(tmp_path / "out"), kind]
        done = subprocess.run(command, capture_output=True, text=True)
        codes.append(done.returncode)
        errors.append(done.stderr)
    assert codes == [75, 0], errors
    assert errors == ["error: stopped by SIGTERM; start the same command again to continue\n", ""]


@pytest.mark.slow
def test_the_demo_prints_its_summary_and_leaves_no_temporary_files(data, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = start("demo", data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5", "--num-batches", 40)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, ""), err
    assert "every one equal to the file bit for bit" in out and "10,240 items" in out
    first, last = map(float, re.search(r"loss +([\d.]+) -> ([\d.]+)", out).groups())
    assert last < first
    assert {path.name for path in tmp_path.iterdir()} <= {f"rlds2reverb-{os.getuid()}"}  # locks of ports
