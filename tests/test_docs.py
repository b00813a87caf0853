"""The README and the docs: the blocks of each page run in order, and commands, options and links are valid."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from page_runner import PageRun, find_blocks, is_as_shown, run_page

from rlds2reverb import load_run
from rlds2reverb.cli.main import cli
from rlds2reverb.datasets.checks import CHECKS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [path for path in (README, *sorted((ROOT / "docs").glob("*.md"))) if path.is_file()]
NO_DOCS = "the docs are not available when an installed wheel is tested"
#: Options that every command or other programs have.
FOREIGN_OPTIONS = {
    "--exclude-editable",
    "--help",
    "--index-url",
    "--no-deps",
    "--overrides",
    "--platform",
    "--python",
    "--require-hashes",
    "--scale",
}
#: Pages that take more than about two seconds.
SLOW_PAGES = {
    f"{name}.md"
    for name in (
        *("README", "adders", "batches", "beam", "coming_from", "custom_agents", "environments", "experiments"),
        *(
            "extend",
            "format_rlds",
            "index",
            "ingestion",
            "off_policy_evaluation",
            "online",
            "replay_buffers",
            "reports",
        ),
        *("robot", "sampling", "scale", "shards", "start", "tf_agents", "training", "write"),
    )
}
#: Languages of blocks that contain no code of readers; `text` is output.
OTHER_LANGUAGES = {"bibtex", "ini", "json", "text", "yaml"}
#: Blocks that are not run, by page and reason.
NOT_RUN = {
    ("README.md", "requires the internet"),
    ("batches.md", "installs packages"),
    ("cluster.md", "installs packages"),
    ("cluster.md", "requires Ray"),
    ("coming_from.md", "code of a different library"),
    ("custom_agents.md", "requires a dataset that is not in the repository"),
    ("experiments.md", "requires the internet"),
    ("format_rlds.md", "requires a dataset that is not in the repository"),
    ("format_robots.md", "requires a dataset that is not in the repository"),
    ("online.md", "requires a dataset that is not in the repository"),
    ("robot.md", "requires the internet"),
    ("shards.md", "requires several machines"),
    ("start.md", "requires the internet"),
    ("training.md", "installs packages"),
    ("training.md", "requires a dataset of OGBench"),
    ("versions.md", "installs packages"),
}


def page_parameters():
    """Yields a parameter for each page that has blocks to run."""
    for page in PAGES:
        if find_blocks(page):
            marks = [pytest.mark.slow] if page.name in SLOW_PAGES else []
            yield pytest.param(page, id=page.name, marks=marks)


def commands(page):
    """Returns the command lines of the package in the code blocks of a page, without prompts and comments."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```(?:bash|console|text)\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in re.findall(r"^(?:\$ )?(rlds2reverb .*)$", block, re.M)]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def find_commands(group):
    """Yields all commands of a group, and those of the groups in it."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield from find_commands(command) if hasattr(command, "list_commands") else [command]


@pytest.fixture
def folder(data, tmp_path, monkeypatch):
    """Provides a new working directory that contains the datasets of the examples."""
    robots = (data / "formats/lerobot", data / "formats/robomimic", data / "rlds_prepared/robomimic_ph")
    for path in (*(data / "d4rl").iterdir(), *robots):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/data").symlink_to(data)  # The README's examples run in a clone.
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", page_parameters())
def test_blocks_of_a_page_run_in_order_and_print_the_output_shown(folder, page):
    if missing := run_page(page):
        pytest.skip(f"ran, except for blocks that require {', '.join(sorted(missing))}")


@pytest.mark.skipif(not PAGES, reason=NO_DOCS)
def test_blocks_that_are_not_run_are_those_listed():
    found = {(page.name, block.skipped) for page in PAGES for block in find_blocks(page) if block.skipped}
    assert found == NOT_RUN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_a_page_is_in_blocks_that_are_run(page):
    languages = re.findall(r"^ *```(\w+)$", page.read_text(), re.M)
    assert set(languages) <= {"bash", "console", "python"} | OTHER_LANGUAGES
    assert sum(language not in OTHER_LANGUAGES for language in languages) == len(find_blocks(page))


@pytest.mark.parametrize(
    ("shown", "printed", "tolerance"),
    [
        ("a 1.5\n", "a 1.5\n", 0),
        ("a ... c\n", "a  b c\n", 0),
        ("a\n  ...\nd\n", "a\nb\nc\nd\n", 0),
        ("...\nb\n", "b\n", 0),
        ("return  1,000 of -2e3\n", "return    950 of -2.1e+03\n", 0.05),
    ],
)
def test_output_is_as_shown(shown, printed, tolerance):
    assert is_as_shown(shown, printed, tolerance)


@pytest.mark.parametrize(
    ("shown", "printed", "tolerance"),
    [
        ("a 1.5\n", "a 1.6\n", 0),
        ("a ... c\n", "a\nc\n", 0),
        ("a\n...\n", "b\na\nb\n", 0),
        ("a\n", "a\nb\n", 0),
        ("return 1,000\n", "return 940\n", 0.05),
        ("return 1,000\n", "length 1,000\n", 0.05),
    ],
)
def test_output_is_not_as_shown(shown, printed, tolerance):
    assert not is_as_shown(shown, printed, tolerance)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n2\n```\n", "page.md:5: the page shows\n2"),
        ("```console\n$ rlds2reverb inspect none.hdf5\n```\n", "page.md:1: exit code 1 of rlds2reverb inspect"),
        ("```console\n$ echo a\nb\n$ echo c\n```\n", "the page shows\nb\n\nbut this was printed:\na"),
        ("```bash\nexit 3\n```\n", "page.md:1: exit code 3"),
        ("```bash\nrlds2reverb serve data\n```\n", "because the server blocks"),
        ("```bash\nrlds2reverb serve none.hdf5 &\n```\n", "the server did not start\nerror: "),
        ("```bash\npip install rlds2reverb\n```\n", "because it installs something"),
        ("<!-- run with: 3 => 2 -->\n```bash\necho 1\n```\n", "does not contain '3', which its marker replaces"),
        ("<!-- never run: slow -->\n```bash\necho 1\n```\n", "page.md:2: unknown marker 'never run: slow'"),
    ],
)
def test_page_with_a_mistake_fails(folder, text, message):
    Path("page.md").write_text(text)
    with pytest.raises(AssertionError, match=re.escape(message)):
        run_page(Path("page.md"))


def test_page_is_run_in_one_session(folder):
    commands = "cat > a.txt <<END\n1\nEND", "grep 1 a.txt"
    blocks = "# mine.py\nx = 8", "from mine import x", "y = x - 7", "print(y)\n```\n\n```text\n1"
    bash = "".join(f"```bash\n{command}\n```\n" for command in commands)
    Path("page.md").write_text(bash + "".join(f"```python\n{block}\n```\n" for block in blocks))
    assert run_page(Path("page.md")) == set()
    assert "mine" not in sys.modules


def find_sweep(package):
    """Returns the block that searches with a package."""
    (block,) = [block for block in find_blocks(ROOT / "docs/experiments.md") if f"import {package}" in block.code]
    return block


@pytest.mark.slow
@pytest.mark.skipif(not PAGES, reason=NO_DOCS)
def test_sweep_of_optuna_continues_its_study(folder):
    pytest.importorskip("optuna")
    for number in (1, 3):
        with PageRun() as session:
            session.run(find_sweep("optuna"))
        assert (folder / f"runs/trial_{number}/policy").is_dir()


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
    code = find_sweep("wandb").code.replace("20_000", "20").replace("count=20", "count=1")
    exec(compile(code, "sweep", "exec"), {"__name__": "__main__"})
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
