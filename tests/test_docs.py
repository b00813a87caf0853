"""The README and the docs: every Python block runs on its own, and commands, options and links are valid."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlds2reverb import load_experiment, load_run
from rlds2reverb.cli.main import cli
from rlds2reverb.datasets.checks import CHECKS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [path for path in (README, *sorted((ROOT / "docs").glob("*.md"))) if path.is_file()]
NO_DOCS = "the docs are not available when an installed wheel is tested"
#: Options that every command or other programs have.
FOREIGN_OPTIONS = {"--help", "--no-deps", "--overrides", "--platform", "--python", "--require-hashes", "--scale"}
#: Blocks that take more than about a fifth of a second, by page and number; most pages have others that are fast.
SLOW_BLOCKS = {
    "README.md-1",
    *(f"adders.md-{number}" for number in (1, 2, 3, 5, 6, 8)),
    "batches.md-5",
    "beam.md-1",
    "cluster.md-1",
    "environments.md-1",
    "environments.md-5",
    "environments.md-8",
    *(f"experiments.md-{number}" for number in (1, 2, 3, 4)),
    "extend.md-1",
    "extend.md-2",
    *("format_rlds.md-1", "format_rlds.md-2"),
    "index.md-1",
    "ingestion.md-1",
    "off_policy_evaluation.md-1",
    "online.md-1",
    *(f"custom_agents.md-{number}" for number in (1, 2, 3)),
    "replay_buffers.md-3",
    *(f"sampling.md-{number}" for number in (1, 2, 3, 4, 5, 6)),
    "start.md-1",
    *(f"training.md-{number}" for number in (1, 2, 3, 4, 5)),
    "reports.md-1",
    "reports.md-2",
    "shards.md-1",
}


def python_blocks():
    """Yields a parameter for each Python block of each page: its code, and the output shown below it."""
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", page.read_text(), re.M | re.S)
        for number, (code, output) in enumerate(blocks, 1):
            name = f"{page.name}-{number}"
            marks = [pytest.mark.slow] if name in SLOW_BLOCKS else []
            if "import rlds\n" in code:
                marks.append(pytest.mark.skipif(find_spec("rlds") is None, reason="requires the package rlds"))
            if "import torch" in code:
                marks.append(pytest.mark.skipif(find_spec("torch") is None, reason="requires PyTorch"))
            yield pytest.param(code, output, id=name, marks=marks)


def commands(page):
    """Returns the command lines of the package in the code blocks of a page, without prompts and comments."""
    blocks = re.findall(r"^```(?:bash|console|text)\n(.*?)^```", page.read_text(), re.M | re.S)
    lines = [line for block in blocks for line in re.findall(r"^(?:\$ )?(rlds2reverb .*)$", block, re.M)]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def find_commands(group):
    """Yields all commands of a group, and those of the groups in it."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield from find_commands(command) if hasattr(command, "list_commands") else [command]


@pytest.fixture
def folder(data, tmp_path, monkeypatch):
    """A new working directory that contains the datasets of the examples."""
    for path in (data / "d4rl").iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/data").symlink_to(data)  # The README's examples run in a clone.
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("code", "output"), python_blocks())
def test_python_block_runs_and_prints_the_output_shown(folder, capsys, code, output):
    exec(compile(code, "block", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert not output or printed == output


@pytest.mark.skipif(not PAGES, reason=NO_DOCS)
def test_slow_blocks_exist():
    assert {block.id for block in python_blocks()} >= SLOW_BLOCKS


def sweep_block(language, word):
    """Returns the block about sweeps that contains a word, with fewer updates."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "docs/experiments.md").read_text(), re.M | re.S)
    (block,) = [block for block in blocks if word in block]
    return re.sub("20_?000", "20", block).replace("count=20", "count=1").replace("n_trials=20", "n_trials=2")


@pytest.mark.slow
@pytest.mark.skipif(not PAGES, reason=NO_DOCS)
def test_sweep_in_a_shell_trains_each_combination(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    script = sweep_block("bash", "for algo").replace("--seeds 3 --jobs 3", "--seeds 1 --log-every 20")
    script = script.replace("td3_bc iql", "td3_bc")
    subprocess.run(["bash", "-euc", script], check=True)
    assert all(load_experiment(f"runs/td3_bc-{gamma}").is_complete for gamma in (0.9, 0.99))
    assert (folder / "curves.png").is_file()


@pytest.mark.slow
@pytest.mark.skipif(not PAGES, reason=NO_DOCS)
def test_sweep_of_optuna_continues_its_study(folder, capsys):
    pytest.importorskip("optuna")
    for number in (1, 3):
        exec(compile(sweep_block("py", "import optuna"), "block", "exec"), {"__name__": "__main__"})
        assert "expectile" in capsys.readouterr().out and (folder / f"runs/trial_{number}/policy").is_dir()


@pytest.mark.slow
@pytest.mark.skipif(not PAGES, reason=NO_DOCS)
def test_sweep_of_wandb_logs_the_return_of_each_run(folder, monkeypatch):
    wandb = pytest.importorskip("wandb")
    start, started, logged = wandb.init, [], []

    def init():
        started.append(start(mode="offline", config={"expectile": 0.8}))
        monkeypatch.setattr(started[0], "log", logged.append)
        return started[0]

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb, "sweep", lambda sweep: sweep["metric"]["name"])
    monkeypatch.setattr(wandb, "agent", lambda sweep, function, count: function())  # Both require the server.
    exec(compile(sweep_block("py", "import wandb"), "block", "exec"), {"__name__": "__main__"})
    assert logged == [{"last_return": load_run(folder / "runs" / started[0].id).last_return}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_have_valid_arguments(page):
    for name, *arguments in commands(page):
        command = cli.get_command(None, name)
        context = command.context_class(command, info_name=name)
        command.make_parser(context).parse_args(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_mentioned_on_a_page_exist(page):
    parameters = [parameter for command in find_commands(cli) for parameter in command.params]
    options = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
    text = re.sub(r"python[^\n]*benchmarks/[^`\n]*", "", page.read_text())  # Benchmarks have their own options.
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) <= options | FOREIGN_OPTIONS


def test_linked_files_and_headings_exist():
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        if not page.is_file():
            continue
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}, which does not exist"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.M)
                anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name} links to {target}#{anchor}, which has no such heading"


@pytest.mark.skipif(not PAGES, reason=NO_DOCS)
def test_table_of_findings_contains_all_checks():
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (info|warning|error) \| (.*) \| (.*) \|$", (ROOT / "docs/findings.md").read_text(), re.M
    )
    assert {name: tuple(row) for name, *row in rows} == CHECKS
