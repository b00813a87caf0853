"""Rules of the paths on the command line, for the options of all commands."""

import shlex

import click
import pytest
from command_parameters import list_parameters

from rlds2reverb import ingest, write_dataset
from rlds2reverb.cli import checks, run
from rlds2reverb.cli.declarations import PATH


def list_bare_paths():
    return [entry for entry in list_parameters() if isinstance(entry[1].type, click.Path)]


def test_every_path_has_the_type_that_expands_it_and_refuses_an_empty_string():
    assert len(list_bare_paths()) == 15
    for names, parameter in list_bare_paths():
        assert isinstance(parameter.type, type(PATH)), (names, parameter.name)


def test_every_file_to_write_is_checked_before_the_command_runs():
    for names, parameter in list_bare_paths():
        assert parameter.type.dir_okay or parameter.type.exists, (names, parameter.name)


@pytest.mark.parametrize(
    "command", ["train --algo bc --data none --run-dir", "convert x --out", "ope . --data x --out"]
)
def test_empty_paths_are_reported(capsys, command):
    assert run([*command.split(), ""]) == 1
    assert "must be a path, got ''" in capsys.readouterr().err


def test_home_directory_is_expanded_in_every_path(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.png").touch()
    for names, parameter in list_parameters():
        if isinstance(parameter.type, click.Path):
            name = "folder" if parameter.type.dir_okay else "file.png"
            assert parameter.type.convert(f"~/{name}", parameter, None) == tmp_path / name, (names, parameter.name)
    for checked in (checks.destination, checks.new_file, checks.figure):
        assert str(checked.convert("~/file.png", None, None)) == str(tmp_path / "file.png")
    assert checks.destination.convert("gs://a/~b", None, None) == "gs://a/~b"


def test_nothing_is_written_to_a_folder_named_like_the_home_directory(monkeypatch, data, tmp_path, capsys):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir(), work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    dataset = str(data / "d4rl/pendulum_mixed-v2.hdf5")
    options = ["--save-statistics", "~/statistics.json", "--normalize-observations"]
    assert run(["convert", dataset, "--out", "~/table", *options]) == 0, capsys.readouterr().err
    assert run(["inspect", dataset, "--report", "~/report.html"]) == 0, capsys.readouterr().err
    ingest(dataset, "~/ingested")
    write_dataset(dataset, "~/written.hdf5", format="d4rl")
    names = ["ingested", "report.html", "statistics.json", "table", "written.hdf5"]
    assert sorted(path.name for path in home.iterdir() if path.name[0] != ".") == names and not list(work.iterdir())


def test_printed_command_is_quoted_for_the_shell(data, tmp_path, capsys):
    path = tmp_path / "a b" / "it's"
    assert run(["convert", str(data / "d4rl/pendulum_mixed-v2.hdf5"), "--out", str(path)]) == 0
    converted = capsys.readouterr().out
    assert run(["inspect", str(path)]) == 0
    for printed in (converted, capsys.readouterr().out):
        (command,) = (line.strip().removeprefix("next") for line in printed.splitlines() if line.startswith("  next"))
        assert shlex.split(command) == ["rlds2reverb", "serve", str(path)]
