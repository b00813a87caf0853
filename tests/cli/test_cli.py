"""The command line as users see it: output, JSON and exit codes; a few commands run in a subprocess."""

import contextlib
import errno
import inspect
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
from command_parameters import list_parameters
from written_directories import assert_same_files

from rlds2reverb import load
from rlds2reverb.cli import inspect as inspect_command, run
from rlds2reverb.cli.main import cli
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.types.tables import MAX_ITEMS, TableConfig
from rlds2reverb.types.trajectories import trajectory_spec

HOPPER = "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5"


def call(capsys, *arguments):
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def rows_file(tmp_path):
    """Returns a function that writes a D4RL file of 400 rows in episodes of 100.

    The first two columns of the observations count up; the third is always 7.
    """

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


def test_inspect_summarizes_a_file(data, capsys):
    code, out, err = call(capsys, "inspect", data / HOPPER, "--reference-returns", "d4rl")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= 80
    assert "2 (2 terminal, 0 truncated, 0 unterminated)" in out and "911 (913 steps with the final observations)" in out
    assert "D4RL's constants for its own hopper" in out and "['observation']  float32 [11]  none" in out
    assert re.search(r"xxh128 [0-9a-f]{32}", out)


def test_inspect_prints_json(data, capsys):
    code, out, _ = call(capsys, "inspect", data / HOPPER, "--json", "--reference-returns", "0,1000")
    summary = json.loads(out)
    assert code == 0 and summary["episodes"] == 2 and summary["transitions"] == 911
    assert summary["score"] == pytest.approx(summary["returns"]["mean"] / 10)


def test_text_and_json_of_inspect_use_the_same_words(data, capsys):
    summary = json.loads(call(capsys, "inspect", data / HOPPER, "--json", "--reference-returns", "d4rl")[1])
    lines = call(capsys, "inspect", data / HOPPER, "--reference-returns", "d4rl")[1].split("\n\n")[0].splitlines()[1:]
    labels = {line[2:].split("  ")[0] for line in lines if not line.startswith("    ")}
    assert {"kind", "episodes", "transitions", "return", "length", "score", "unread", "fingerprint"} <= labels
    singular = {name.removesuffix("s") for name in summary}
    assert {label for label in labels if label not in singular | summary.keys()} == {"size"}  # In JSON, "size_bytes".
    assert all(name in summary for name in ("terminal", "truncated", "unterminated"))


def test_inspect_applies_reading_options(data, capsys):
    code, out, _ = call(capsys, "inspect", data / HOPPER, "--load", "extra_fields=qpos", "--json")
    assert code == 0 and "['qpos']" in [field["name"] for field in json.loads(out)["fields"]]
    code, out, _ = call(
        capsys, "inspect", data / "malformed/hdf5/missing_timeouts.hdf5", "--load", "max_episode_steps=10", "--json"
    )
    assert code == 0 and json.loads(out)["lengths"]["max"] == 10
    path = data / "formats/rlds/a4/nested_cameras/1.0.0"
    assert [call(capsys, "inspect", path, *options)[1].count("uint8") for options in ((), ("--camera", "none"))] == [
        3,
        0,
    ]


def test_inspect_warns_about_final_observations_lost_by_tfds(data, capsys):
    _, out, err = call(capsys, "inspect", data / "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0")
    assert "warning:" in err and "load the D4RL HDF5 file" in err and "load the D4RL" not in " ".join(out.split())
    assert out.splitlines()[0] == "d4rl_mujoco_hopper/v1-random 1.2.0"


def test_output_that_nobody_reads_is_ignored():
    script = "from rlds2reverb.cli.main import main; main()"
    program = [sys.executable, "-c", script, "validate", "--help"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b"" and running.wait(timeout=60) == 0


@pytest.mark.parametrize("name", ["d4rl/hopper_medium-v2.hdf5", HOPPER])
def test_inspect_does_not_derive_a_d4rl_score_from_a_file_name(data, capsys, name):
    _, out, _ = call(capsys, "inspect", data / name)
    assert "score" not in out
    _, out, _ = call(capsys, "inspect", data / "rlds_prepared/d4rl_mujoco_hopper/v0-medium/1.2.0")
    assert "D4RL's constants for its own hopper" in out


def test_inspect_adds_the_counts_of_a_table_on_several_servers():
    table = {"name": "replay", "items": 1, "max_size": MAX_ITEMS, "inserted": 4, "sampled": 30, "episodes": 2}
    total = inspect_command.add_tables(inspect_command.add_tables(None, table, "a:1"), table, "b:1")
    assert total == {"name": "replay", "items": 2, "max_size": MAX_ITEMS, "inserted": 8, "sampled": 60, "episodes": 4,
                     "servers": {"a:1": 1, "b:1": 1}}  # fmt: skip


def test_inspect_describes_the_tables_of_a_server_and_names_one_that_does_not_answer(data, capsys):
    tables = [TableConfig("b", max_size=50), TableConfig("a", max_times_sampled=3)]
    with ReplayServer(tables, trajectory_spec(load(data / HOPPER).step_spec)) as server:
        code, out, err = call(capsys, "inspect", server.address)
        first, second = out.split("\n\n")
        assert (code, err) == (0, "") and first.startswith(f"table 'a' of {server.address}\n")
        rows = [re.split("  +", line.strip()) for line in first.splitlines()[1:]]
        facts = {name: value for name, value, *_ in rows if name != "field"}
        assert facts["max size"] == "no limit" and facts["max times sampled"] == "3" and facts["items"] == "0"
        assert ["field", "item['observation']", "float32 [11]"] in rows and "server" not in facts
        assert "max size            50\n" in second and "max times sampled   no limit\n" in second
        gone = f"{server.address},localhost:1"
        code, out, err = call(capsys, "inspect", gone, "--timeout", 0.1, "--json")
        assert code == 0 and "localhost:1" in err and "its items are not counted" in err
        document = json.loads(out)
        assert document["server"] == gone and [table["name"] for table in document["tables"]] == ["a", "b"]
        assert document["tables"][0]["servers"] == {server.address: 0}
    code, _, err = call(capsys, "inspect", "localhost:1", "--timeout", 0.1)
    assert code == 75 and "no Reverb server answered at localhost:1" in err


def test_inspect_and_validate_read_converted_directories(data, capsys, tmp_path):
    out_directory = tmp_path / "out"
    assert call(capsys, "convert", data / HOPPER, "--out", out_directory, "--sampler", "uniform")[0] == 0
    code, out, err = call(capsys, "inspect", out_directory)
    assert (code, err) == (0, "") and "kind    converted dataset" in out
    assert "hopper_medium-v2.hdf5, 2 episodes" in out and "911 in each table" in out and "sampler uniform" in out
    document = json.loads(call(capsys, "inspect", out_directory, "--json")[1])
    assert document["items"] == 911 and document["tables"][0]["name"] == "replay"
    code, out, _ = call(capsys, "validate", out_directory)
    assert code == 0 and "valid, all checksums match" in out
    (chunks,) = out_directory.glob("checkpoints/*/chunks.tfrecord")
    content = bytearray(chunks.read_bytes())
    content[100] ^= 1
    chunks.write_bytes(content)
    code, out, err = call(capsys, "validate", out_directory)
    assert code == 2 and "chunks.tfrecord is damaged" in err and "INVALID" in out
    assert json.loads(call(capsys, "validate", out_directory, "--json")[1])["valid"] is False


def test_datasets_are_downloaded_only_with_the_option(data, capsys, tmp_path, monkeypatch):
    downloads = []

    def download(name):
        downloads.append(name)
        shutil.copytree(data / "minari" / name, tmp_path / name)

    monkeypatch.setattr(minari, "download_dataset", download)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    code, _, err = call(capsys, "inspect", "mujoco/hopper/dev-v0")
    assert (code, downloads) == (1, []) and "allow the download (--load download)" in err
    for _ in range(2):  # The second time, the dataset is on this machine.
        code, out, _ = call(capsys, "convert", "mujoco/hopper/dev-v0", "--load", "download", "--out", tmp_path / "out")
        assert (code, downloads) == (0, ["mujoco/hopper/dev-v0"]) and "episodes       8\n" in out


# --- validate


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("hdf5/ok_control.hdf5", (), "valid (4 episodes"),
        (  # Values in last steps.
            "rlds/ok_control",
            ("--load", "last_step=boundary"),
            "valid, with notes (3 episodes, 12 steps, 0 errors, 1 note)",
        ),
    ],
)
def test_validate_accepts_valid_data(data, capsys, name, options, expected):
    code, out, err = call(capsys, "validate", data / "malformed" / name, *options)
    assert (code, err) == (0, "") and expected in out and "0 errors" in out


def test_validate_lists_errors_and_exits_with_2(data, capsys):
    path = data / "malformed/hdf5/nan_reward.hdf5"
    code, out, _ = call(capsys, "validate", path)
    assert code == 2 and "step['reward'] holds NaN. (episode 1, step 14, field reward)" in out and "INVALID" in out
    code, out, _ = call(capsys, "validate", path, "--json")
    result = json.loads(out)
    assert code == 2 and result["failed"] and not result["valid"] and result["num_errors"] == 1
    assert result["errors"] == [{"episode": 1, "step": 14, "field": "reward", "message": "step['reward'] holds NaN."}]


def test_validate_reports_warnings_of_the_source(data, capsys):
    path = data / "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0"
    code, out, err = call(capsys, "validate", path)
    assert code == 0 and "load the D4RL HDF5 file" in err and "1 warning)" in out
    (warning,) = json.loads(call(capsys, "validate", path, "--json")[1])["warnings"]
    assert "load the D4RL HDF5 file" in warning


def test_validate_exits_with_2_when_data_cannot_be_read(data, capsys):
    code, out, err = call(capsys, "validate", data / "malformed/hdf5/external_link_passwd.hdf5")
    assert code == 2 and "is a link to another file" in err and "INVALID" in out
    code, out, _ = call(capsys, "validate", data / "malformed/rlds/bad_json", "--json")
    assert code == 2 and "cannot be read as JSON" in json.loads(out)["source_error"]


@pytest.mark.slow
def test_validate_applies_transforms(data, capsys):
    path = data / "rlds_prepared/robomimic_ph/lift_ph_low_dim/1.0.1"
    assert call(capsys, "validate", path)[0] == 2
    assert call(capsys, "validate", path, "--cut-at-terminal")[0] == 0


def test_validate_notes_an_episode_without_an_end(data, capsys):
    path = data / "malformed/hdf5/unclosed_tail.hdf5"
    code, out, _ = call(capsys, "validate", path)
    assert code == 0 and "note: 1 episode ends without a terminal or a timeout; treated as truncated" in out
    assert "valid, with notes (4 episodes, 56 steps, 0 errors, 1 note)" in out
    assert json.loads(call(capsys, "validate", path, "--json")[1])["unterminated"] == 1


def test_validate_notes_few_discontinuities_and_rejects_many(capsys, rows_file):
    path = rows_file(jump_at=[149, 224])
    code, out, err = call(capsys, "validate", path)
    assert (code, err) == (0, "") and "valid, with notes (4 episodes, 404 steps, 0 errors, 1 note)" in out
    assert out.startswith(
        "note: next_observations differs from the observation of the next row in 2 rows inside episodes"
    )
    assert "first in row 149 (episode 1)" in out and "--load split_at_discontinuity" in out
    result = json.loads(call(capsys, "validate", path, "--json")[1])
    assert result["valid"] and (result["discontinuities"], result["dropped_last_transition"]) == (2, 0)
    assert len(result["notes"]) == 1
    code, out, _ = call(capsys, "validate", path, "--load", "split_at_discontinuity")
    assert code == 0 and "valid (6 episodes, 406 steps, 0 errors)\n" in out
    code, out, err = call(capsys, "validate", rows_file(jump_at=range(0, 55, 5)))
    assert code == 2 and "more than 1% of the rows" in err and "first in row 0 (episode 0)" in err
    assert "INVALID" in out and "1 error" in out


def test_shuffled_rows_are_read_with_independent_rows(capsys, rows_file, tmp_path):
    path = rows_file(shuffled=True)
    code, out, err = call(capsys, "validate", path)
    assert code == 2 and "shuffled or relabelled" in err and "INVALID" in out
    code, out, _ = call(capsys, "validate", path, "--load", "independent_rows")
    assert code == 0 and "valid (400 episodes, 800 steps, 0 errors)\n" in out
    code, out, err = call(capsys, "convert", path, "--load", "independent_rows", "--out", tmp_path / "out")
    assert (code, err) == (0, "") and "400 in each table" in out
    options = ("--load", "independent_rows", "--load", "max_episode_steps=3")
    code, _, err = call(capsys, "convert", path, *options, "--out", tmp_path / "other")
    assert (
        code == 1
        and "--load independent_rows already ends an episode after each row; leave out other rules (--load max_" in err
    )


def test_validate_lists_at_most_max_errors(data, capsys):
    path = data / "rlds_prepared/robomimic_ph/lift_ph_low_dim/1.0.1"
    code, out, _ = call(capsys, "validate", path, "--max-errors", 1)
    assert code == 2 and len(out.splitlines()) == 3 and "more (see --max-errors)" in out


def test_validate_lists_findings_and_fails_on_their_severity(capsys, rows_file):
    path = rows_file()
    code, out, err = call(capsys, "validate", path)
    assert (code, err) == (0, "") and "0 errors)" in out
    assert re.search(r"\nwarning +zero-variance-dimension +1 +4 +episode 0, step 0\n", out)
    assert "observation: element 2 of 3 never change;" in out
    code, out, _ = call(capsys, "validate", path, "--json", "--fail-on", "warning")
    result = json.loads(out)
    assert code == 2 and result["valid"] and result["failed"]
    assert result["findings"][0]["check"] == "zero-variance-dimension"
    assert result["findings"][0]["advice"] == "remove them, or repair the sensor"
    code, out, _ = call(capsys, "validate", path, "--fail-on", "warning")
    assert code == 2 and "FAILED (4 episodes" in out


@pytest.mark.parametrize(("fail_on", "expected"), [("error", 2), ("never", 2)])
def test_errors_fail_whatever_the_findings(data, capsys, fail_on, expected):
    path = data / "malformed/hdf5/nan_reward.hdf5"
    code, out, _ = call(capsys, "validate", path, "--json", "--fail-on", fail_on)
    (finding,) = [found for found in json.loads(out)["findings"] if found["severity"] == "error"]
    assert code == expected and (finding["check"], finding["episode"], finding["step"]) == ("non-finite", 1, 14)


def test_inspect_names_the_findings(capsys, rows_file):
    code, out, _ = call(capsys, "inspect", rows_file())
    assert code == 0 and "findings: zero-variance-dimension (warning); see rlds2reverb validate" in out
    summary = json.loads(call(capsys, "inspect", rows_file(), "--json")[1])
    assert [finding["check"] for finding in summary["findings"]] == ["zero-variance-dimension"]


def test_validate_reports_findings_with_figures(capsys, rows_file, tmp_path):
    page = tmp_path / "findings.html"
    code, out, _ = call(capsys, "validate", rows_file(), "--report", page)
    assert code == 0 and out.splitlines()[-1].startswith(f"wrote {page} (")
    text = page.read_text()
    assert "zero-variance-dimension" in text and "First in episode 0, step 0." in text and "data:image/svg+xml" in text
    assert "the file must end with .html" in call(capsys, "validate", rows_file(), "--report", tmp_path / "page.txt")[2]


@pytest.mark.parametrize("options", [("--fail-on", "warning"), ("--report", "page.html")])
def test_options_of_findings_require_a_dataset(data, capsys, tmp_path, options):
    out_directory = tmp_path / "out"
    assert call(capsys, "convert", data / HOPPER, "--out", out_directory)[0] == 0
    code, _, err = call(capsys, "validate", out_directory, *options)
    assert code == 1 and f"{options[0]} requires a dataset, not a converted directory" in err


# --- convert


@pytest.fixture
def server():
    server = reverb.Server([reverb.Table.queue("replay", 10_000), reverb.Table.queue("other", 10_000)], port=None)
    yield server
    server.stop()


def size(server, table="replay"):
    return server.localhost_client().server_info(timeout=10)[table].current_size


def test_convert_to_a_server_writes_to_a_running_server(data, capsys, server):
    code, out, err = call(capsys, "convert", data / HOPPER, "--out", f"localhost:{server.port}")
    assert (code, err) == (0, "") and size(server) == 911
    assert "911 in each table\n  item kind      transitions (2 steps each)" in out and "steps per sec" in out


def test_convert_to_a_server_applies_options_and_prints_json(data, capsys, server, tmp_path):
    statistics = tmp_path / "statistics.json"
    code, out, _ = call(
        capsys,
        "convert",
        data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5",
        *("--out", f"localhost:{server.port}"),
        *("--table", "replay", "--table", "other", "--sequence-length", 3),
        *("--stride", 2, "--cast-floats", "--normalize-observations", "--reward", "scale:0.5:1", "--clip-actions"),
        *("--action-bounds", -1, 1),
        *("--save-statistics", statistics, "--json"),
    )
    report = json.loads(out)
    assert code == 0 and report["tables"] == ["replay", "other"]
    assert report["items"] == size(server) == size(server, "other") > 0
    saved = json.loads(statistics.read_text())
    assert (saved["reward_scale"], saved["reward_shift"], len(saved["observation_mean"])) == (0.5, 1.0, 11)
    assert report["statistics"] == saved and (saved["float_dtype"], saved["action_bounds"]) == ("float32", [-1, 1])


def test_convert_prints_notes_and_changes_once(capsys, rows_file, tmp_path):
    options = ("--cast-floats", "--normalize-observations", "--clip-actions", "--reward", "iql_antmaze")
    options += ("--action-bounds", -2, 2)
    path = rows_file(jump_at=[149])
    code, out, err = call(capsys, "convert", path, *options, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    out = " ".join(out.split())
    for sentence in (
        "note next_observations differs from the observation of the next row in 1 rows",
        "note step['observation'] is constant at [2] and was normalised to zeros there",
        "changed floats cast to float32 changed (reward - 1) * 1 changed (observation - mean) / (std + 0.001) changed "
        "action bounds set to -2 and 2 changed actions clipped to their bounds ",
    ):
        assert out.count(sentence) == 1
    code, out, _ = call(capsys, "validate", path, *options)
    assert code == 0 and "note: step['observation'] is constant at [2]" in out and "0 errors, 2 notes)" in out


def test_convert_prints_a_warning_of_the_source_once(data, capsys, tmp_path):
    path = data / "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0"
    code, out, err = call(capsys, "convert", path, "--out", tmp_path / "out")  # A Python warning would be an error.
    assert code == 0 and err.count("load the D4RL HDF5 file") == 1 and "load the" not in out


def test_convert_writes_a_directory_once(data, capsys, tmp_path):
    arguments = ("convert", data / HOPPER, "--out", tmp_path / "out", "--sampler", "uniform", "--table", "t")
    code, out, err = call(capsys, *arguments)
    assert (code, err) == (0, "") and "911 in each table" in out
    assert re.search(r"about 1\.\d MB in the server", out)
    code, out, err = call(capsys, *arguments)
    assert (
        (code, err) == (0, "") and "nothing to write" in out and "2 episodes already written by an earlier run" in out
    )
    code, _, err = call(capsys, *arguments, "--stride", 2)
    assert code == 1 and "stride of adder TrajectoryWindows was 1, is now 2" in err and "(--stride)" in err
    assert not (tmp_path / "out.partial").exists()
    code, _, err = call(capsys, "serve", tmp_path / "out", "--sampler", "fifo")
    assert code == 2 and "sampler of table 't' was uniform, is now fifo" in err


@pytest.mark.parametrize(
    ("options", "items", "kind"),
    [
        (("--whole-episodes", "--layout", "packed", "--priority", "return"), 2, "whole episodes"),
        (("--padding", "tile", "--sequence-length", 3, "--chunk-length", 4), 913, "windows of 3 steps"),
        pytest.param(("--writer", "reverb"), 911, "transitions (2 steps each)", marks=pytest.mark.slow),
        pytest.param(
            ("--n-step", 3, "--gamma", 0.9, "--layout", "packed"), 911, "3-step transitions", marks=pytest.mark.slow
        ),
        pytest.param(
            ("--key-seed", 1, "--no-resume", "--force"), 911, "transitions (2 steps each)", marks=pytest.mark.slow
        ),
    ],
)
def test_convert_to_a_server_makes_the_kind_of_items_in_the_options(data, capsys, server, options, items, kind):
    code, out, err = call(capsys, "convert", data / HOPPER, "--out", f"localhost:{server.port}", *options)
    assert (code, err) == (0, "") and size(server) == items and f"item kind      {kind}\n" in out


def test_convert_distributes_several_files_over_shards(data, capsys, tmp_path):
    for name in ("a", "b"):
        shutil.copy(data / HOPPER, tmp_path / f"{name}.hdf5")
    code, out, err = call(
        capsys, "convert", tmp_path / "a.hdf5", tmp_path / "b.hdf5", "--out", tmp_path / "out", "--shards", 2
    )
    assert (code, err) == (0, "") and "a.hdf5 and 1 more converted" in out and "1,822 in each table" in out
    sizes = []
    for shard in range(2):
        code, out, err = call(capsys, "inspect", tmp_path / f"out/shard_{shard}", "--json")
        sizes.append(json.loads(out)["items"])
    assert sum(sizes) == 1822 and min(sizes) > 0


@pytest.mark.slow
def test_convert_on_beam_writes_the_same_files(data, capsys, tmp_path):
    options = ("--normalize-observations", "--priority", "return", "--n-step", 3)
    call(capsys, "convert", data / HOPPER, "--out", tmp_path / "plain", *options)
    arguments = ("convert", data / HOPPER, "--out", tmp_path / "beam", *options, "--runner", "direct", "--json")
    code, out, err = call(capsys, *arguments, "--save-statistics", tmp_path / "statistics.json")
    assert (code, err) == (0, "") and json.loads(out)["items"] > 800
    assert_same_files(tmp_path / "beam", tmp_path / "plain")
    assert "observation_mean" in json.loads((tmp_path / "statistics.json").read_text())


@pytest.mark.slow
def test_convert_on_beam_prepares_an_rlds_dataset(data, capsys, tmp_path):
    target, statistics = tmp_path / "hopper/1.0.0", tmp_path / "statistics.json"
    options = ("--normalize-observations", "--save-statistics", statistics, "--runner", "direct")
    code, out, err = call(capsys, "convert", data / HOPPER, "--format", "rlds", "--out", target, *options)
    assert (code, err) == (0, "") and "episodes     2" in out
    assert (target / "dataset_info.json").is_file() and "observation_mean" in json.loads(statistics.read_text())


@pytest.mark.drill("F9")
def test_convert_exits_with_75_when_the_disk_is_full(data, capsys, tmp_path, monkeypatch):
    from rlds2reverb.reverb.writing import directory_destination

    def fail(self, array):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(directory_destination.HashedFile, "append", fail)
        code, _, err = call(capsys, "convert", data / HOPPER, "--out", tmp_path / "out")
    assert code == 75 and "no space left for" in err and "nothing is kept: free some space" in err
    assert list(tmp_path.iterdir()) == []
    assert call(capsys, "convert", data / HOPPER, "--out", tmp_path / "out")[0] == 0


def test_convert_to_a_server_writes_invalid_data_only_with_on_invalid(data, capsys, server, tmp_path):
    path, to = data / "malformed/hdf5/nan_reward.hdf5", f"localhost:{server.port}"
    code, _, err = call(capsys, "convert", path, "--out", to)
    assert code == 2 and "holds NaN" in err and err.endswith("use --on-invalid skip_episode\n") and size(server) == 0
    code, _, err = call(capsys, "train", "--algo", "bc", "--data", path, "--run-dir", tmp_path / "run", "--env", "none")
    assert code == 2 and err.endswith("to leave out such episodes, use --on-invalid skip_episode\n")
    code, out, err = call(capsys, "convert", path, "--out", to, "--on-invalid", "skip_episode")
    assert code == 0 and "1 invalid episode skipped" in out and "holds NaN" in out


@pytest.mark.slow
@pytest.mark.drill("F14")
def test_convert_to_a_server_exits_with_75_when_no_server_answers(data, capsys):
    code, _, err = call(capsys, "convert", data / HOPPER, "--out", "localhost:1", "--timeout", 1)
    assert code == 75 and "no Reverb server answered at localhost:1 within 1 s" in err


# --- wrong usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "HOPPER", "--checkpoint-every", "5d"], "10m or 2h, got '5d'"),
        (["serve", "HOPPER", "--append"], "--append requires --checkpoint-root"),
        (["convert", "HOPPER", "--out", "x", "--gamma", "0.9"], "--gamma requires --n-step"),
        (["convert", "HOPPER", "--out", "x", "--n-step", "0"], "--n-step must be an integer >= 1, got '0'"),
        (
            ["convert", "HOPPER", "--out", "x", "--n-step", "3", "--stride", "2"],
            "--stride cannot be combined with --n-step",
        ),
        (
            ["convert", "HOPPER", "--out", "localhost:1", "--whole-episodes", "--stride", "2"],
            "--stride cannot be combined with --whole",
        ),
        (
            ["convert", "HOPPER", "--out", "localhost:1", "--priority", "high"],
            "--priority: the priority must be a number in [0, 1e12] or 'return', got",
        ),
        (["convert", "HOPPER", "--out", "x", "--beam-pipeline-options", "a=1"], "requires --runner"),
        (
            ["convert", "HOPPER", "--out", "x", "--runner", "direct", "--verify"],
            "--verify cannot be combined with --ru",
        ),
        (["convert", "HOPPER", "--out", "x", "--format", "rlds", "--shards", "2"], "--shards requires --format reverb"),
        (
            ["convert", "HOPPER", "--out", "x", "--format", "d4rl", "--runner", "direct"],
            "--runner requires --format reverb or rlds",
        ),
        (
            ["convert", "HOPPER", "--out", "x", "--runner", "direct", "--format", "rlds", "--n-step", "2"],
            "--n-step requires --format reverb",
        ),
        (["convert", "no/*.hdf5", "--out", "x", "--runner", "direct"], "no file matches 'no/*.hdf5'"),
        (["serve", "HOPPER", "--empty", "--force"], "--force cannot be combined with --empty"),
        (["serve", "--force"], "--force requires SRC"),
        (["convert", "HOPPER"], "missing option '--out'"),
        (["convert", "HOPPER", "--out", "localhost:70000"], "the address must be HOST:PORT"),
        (["convert", "HOPPER", "--out", "localhost:"], "the address must be HOST:PORT such as localhost:8000, got"),
        (["convert", "HOPPER", "--out", "localhost:1, localhost:2"], "the address must be HOST:PORT such as"),
        (
            ["convert", "HOPPER", "--out", "localhost:1,localhost:1"],
            "the destinations must differ, but localhost:1 is named twice",
        ),
        (["inspect", "HOPPER", "--max-episode-steps", "5"], "pass --load max_episode_steps=VALUE"),
        (["inspect", "HOPPER", "HOPPER", "--load", "done=terminal"], "several SRC must all be directories of training"),
        (
            ["inspect", "HOPPER", "--load", "extra_fields=a,,b"],
            "--load extra_fields must be names separated by commas, or only none",
        ),
        (["convert", "HOPPER", "--out", "localhost:1", "--format", "d4rl"], "--format requires a path as --out"),
        (["convert", "HOPPER", "--out", "localhost:1", "--max-size", "9"], "--max-size requires a directory as --out"),
        (["convert", "HOPPER", "--out", "x", "--timeout", "9"], "--timeout requires HOST:PORT of a server as --out"),
        (
            ["inspect", "HOPPER", "--load", "last_steps=auto"],
            "no name 'last_steps'; did you mean 'last_step'? --load help",
        ),
        (
            ["inspect", "HOPPER", "--load", "done=maybe"],
            "--load done must be terminal or truncated, got 'maybe'; --load help explains it",
        ),
        (["inspect", "HOPPER", "--load", "done"], "--load must be NAME=VALUE such as last_step=boundary, got 'done'"),
        (["inspect", "HOPPER", "--load", "done=a", "--load", "done=b"], "--load done must be passed only once"),
        (["inspect", "HOPPER", "--load", "frame_stack=0"], "--load frame_stack must be an integer >= 1, got '0'"),
        (
            ["convert", "HOPPER", "--out", "localhost:1", "--reward", "more"],
            "--reward: the reward recipe must be iql_locomotion",
        ),
        (["serve", "HOPPER", "--sampler", "best"], "selector must be one of"),
        (["serve", "HOPPER", "--rate-limiter", "x"], "rate limiter must be min_size:N"),
        (["serve", "--split", "test"], "--split requires SRC"),
        (["validate", "HOPPER", "--drop-field", "reward"], "'reward' cannot be dropped"),
        (["inspect", "nothing.hdf5"], "there is no file 'nothing.hdf5'"),
        (["inspect"], "missing argument 'SRC...'"),
        (["nonsense"], "there is no command 'nonsense'"),
        (["inspect", "HOPPER", "--colour"], "there is no option --colour"),
    ],
)
def test_wrong_usage_prints_one_sentence_and_exits_with_1(data, capsys, arguments, message):
    code, out, err = call(capsys, *(data / HOPPER if argument == "HOPPER" else argument for argument in arguments))
    assert code == 1 and out == "" and message in err and "Traceback" not in err


def test_control_characters_in_names_are_escaped(data, capsys, tmp_path):
    path = tmp_path / "[x][bold]a\x1b[31m.hdf5"
    path.write_bytes((data / HOPPER).read_bytes())
    code, out, _ = call(capsys, "inspect", path)
    assert code == 0 and out.startswith("[x][bold]a\\x1b[31m.hdf5") and "\x1b" not in out


@pytest.mark.slow
def test_statistics_are_saved_only_after_success(data, capsys, tmp_path):
    target = tmp_path / "s.json"
    arguments = ("--out", "localhost:1", "--timeout", 1, "--normalize-observations", "--save-statistics", target)
    assert call(capsys, "convert", data / HOPPER, *arguments)[0] == 75
    assert not target.exists()


def test_load_help_lists_the_arguments_of_load(capsys):
    code, out, _ = call(capsys, "inspect", "x", "--load", "help")
    listed = set(re.findall(r"^  (\w+)=", out, re.M))
    arguments = set(inspect.signature(load).parameters)
    arguments -= {"source", "split", "cameras", "mapping", "on_invalid"}
    assert code == 0 and listed == arguments


def test_no_help_is_longer_than_70_lines_and_all_commands_have_at_most_230_options(capsys):
    names = {words for words, _ in list_parameters()}
    for words in names:
        code, out, _ = call(capsys, *words, "--help")
        assert code == 0 and len(out.splitlines()) <= 70, words
    assert sum(isinstance(parameter, click.Option) for _, parameter in list_parameters()) <= 230


def test_every_command_and_option_has_help(capsys):
    for name in cli.list_commands(None):
        command = cli.get_command(None, name)
        code, out, _ = call(capsys, name, "--help")
        assert code == 0 and "Usage: rlds2reverb" in out
        assert all(option.help for option in command.params if isinstance(option, click.Option)), name
    code, out, _ = call(capsys, "--help")
    assert code == 0 and re.search(
        r"Exit codes:\n +0 +success\n +1 +wrong usage, .*\n +2 +invalid data, .*\n +75 ", out
    )
    assert call(capsys, "--version")[1].startswith("rlds2reverb, version 0.1")


def test_wrong_options_fail_before_tensorflow_is_loaded(data):
    wrong = [
        ("--n-step", "0"),
        ("--sequence-length", "0"),
        ("--stride", "-1"),
        ("--gamma", "1.5"),
        ("--chunk-length", "0"),
        ("--max-size", "0"),
        ("--sampler", "best"),
        ("--remover", "prioritized:-1"),
        ("--rate-limiter", "min_size:x"),
        ("--priority", "-1"),
        ("--reward", "scale:x"),
        ("--load", "max_episode_steps=0"),
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
        assert line.startswith(f"error: {name}")
    assert "there is no file 'nothing.hdf5'" in lines[-2]
    assert "malformed exists and was not written by rlds2reverb; pass a new directory" in lines[-1]


def test_errors_are_printed_as_json(data, capsys):
    for arguments, exit_code, message in [
        (("inspect", "nothing.hdf5"), 1, "there is no file 'nothing.hdf5'"),
        (("inspect", data / "malformed/hdf5/text.hdf5"), 2, "text.hdf5"),
        (("convert", data / HOPPER, "--out", "localhost:1", "--timeout", "1"), 75, "no Reverb server answered"),
        (("convert", data / HOPPER), 1, "missing option '--out'"),
    ]:
        code, out, err = call(capsys, *arguments, "--json")
        document = json.loads(out)
        assert code == document["exit_code"] == exit_code
        assert message in document["error"] and document["error"] in err.replace("\n", " ")


@pytest.mark.drill("F10")
def test_convert_rejects_an_occupied_directory(data, capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    code, _, err = call(capsys, "convert", data / HOPPER, "--out", tmp_path)
    assert code == 1 and "exists and was not written by rlds2reverb" in err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["convert", "serve", "train"])
def test_help_fits_a_screen_and_help_all_explains_each_option(capsys, name):
    _, short, _ = call(capsys, name, "--help")
    code, full, _ = call(capsys, name, "--help-all")
    assert code == 0 and ("those of the environment" in full) == (name == "train")
    assert len(short.splitlines()) <= 70 < len(full.splitlines())
    assert max(map(len, (short + full).splitlines())) <= 80
    assert bool(re.search(r"--gamma FLOAT +Discount factor\.  \[default: 0\.99\]", full)) == (name == "train")
    options = cli.get_command(None, name).params
    flags = {option.opts[0] for option in options if isinstance(option, click.Option)}
    assert flags <= set(re.findall(r"^  (--[\w-]+)", full, re.M)) and flags <= set(re.findall(r"--[\w-]+", short))
    others = full.split("Other:")[1]
    assert re.findall(r"--[\w-]+", others) == ["--json", "--help-all", "--help"]


# --- subprocesses


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "rlds2reverb.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def terminate(process):
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_for(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_until_serving(process):
    lines = []
    for line in process.stderr:
        lines.append(line)
        if match := re.search(r"serving on (localhost:\d+)", line):
            return match[1], lines
    pytest.fail("".join(lines))


@pytest.mark.slow
@pytest.mark.drill("F4")
def test_serve_writes_a_dataset_and_serves_until_sigterm_and_restores_the_items(data, tmp_path):
    """Runs serve and inspect in subprocesses, and checks that libraries print nothing."""
    root = tmp_path / "root"
    process = start("serve", data / HOPPER, "--checkpoint-root", root)
    address, lines = wait_until_serving(process)
    assert "table 'replay': 911 items\n" in "".join(lines)
    _, out, err = wait_for(start("inspect", address, "--json"))
    (table,) = json.loads(out)["tables"]
    assert (err, table["items"], table["sampler"]) == ("", 911, "prioritized:0.6")
    assert any("observation" in name for name in table["signature"])
    code, out, err = terminate(process)
    assert code == 75 and "hopper_medium-v2.hdf5 converted" in out and "Traceback" not in err
    assert not [line for line in lines if "reverb/cc" in line or "Gym" in line or "tensorflow" in line.lower()]

    code, _, err = wait_for(start("serve", data / HOPPER, "--checkpoint-root", root))
    assert code == 1 and "already has 911 items from the checkpoint; pass --append" in err

    process = start("serve", data / HOPPER, "--empty", "--checkpoint-root", root)
    _, lines = wait_until_serving(process)
    assert "table 'replay': 911 items\n" in "".join(lines)
    code, out, err = terminate(process)
    assert (code, out) == (75, "") and "checkpoint " in err

    code, _, err = wait_for(start("serve", "--checkpoint-root", root, "--max-size", 5))
    assert code == 2 and "max_size of table 'replay' was 2147483647, is now 5" in err and "(--max-size)" in err


@pytest.mark.slow
def test_a_terminal_shows_a_status_line_while_tensorflow_loads(data, tmp_path):
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "rlds2reverb.cli", "convert", str(data / HOPPER), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, text=True) as process:
        os.close(writer)
        shown = b""
        with contextlib.suppress(OSError):  # Raised at the end of a pseudo-terminal.
            while block := os.read(reader, 1000):
                shown += block
        os.close(reader)
        assert "converted" in process.stdout.read()
    assert b"loading TensorFlow and Reverb" in shown and b"[reverb/cc" not in shown


@pytest.mark.slow
@pytest.mark.drill("F4")
def test_convert_resumes_after_sigterm(data, tmp_path):
    program = """
import os, signal, sys
from rlds2reverb.reverb.writing import directory_destination
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
    assert errors == ["error: stopped by SIGTERM; run the same command again to continue\n", ""]


@pytest.mark.slow
def test_demo_prints_and_runs_each_command(data, tmp_path):
    process = start("demo", data / "d4rl/pendulum_mixed-v2.hdf5", "--out", tmp_path / "demo", "--steps", 20)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    commands = [line.split()[2] for line in out.splitlines() if line.startswith("$ rlds2reverb ")]
    assert commands == ["inspect", "validate", "convert", "train", "inspect"]
    assert "items read back, equal to those of the dataset" in out and f"bc trained in {tmp_path}/demo/run" in out
    assert (tmp_path / "demo/report.html").is_file()


@pytest.mark.slow
def test_demo_stops_at_the_first_command_that_fails(data, tmp_path):
    (tmp_path / "a.hdf5").write_bytes(b"damaged")
    process = start("demo", tmp_path / "a.hdf5", "--out", tmp_path / "demo")
    out, err = process.communicate(timeout=120)
    assert process.returncode not in (0, None) and out.count("$ rlds2reverb") == 1 and err.startswith("error: ")
