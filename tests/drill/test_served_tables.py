"""Drill: training on a table of a server that is killed, and then restarted in different ways."""

import re
import time
from contextlib import ExitStack
from pathlib import Path

import portpicker
import pytest
from faults import process, receive, within
from trained_runs import DATA, NUM_UPDATES, make_arguments, read_rows, serve_directory, train_by_command

from rlds2reverb import ingest
from rlds2reverb.adders import NStep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Directories with tables of two datasets whose observations have different shapes."""
    folder = tmp_path_factory.mktemp("tables")
    for name, path in (("same", DATA), ("different", DATA.with_name("hopper_medium-v2.hdf5"))):
        ingest(path, folder / name, adder=NStep(1, 0.99))
    return folder


def call(tmp_path, tables, restarted, recovery):
    """Trains on a table whose server is killed, and restarted with another directory unless `restarted` is None.

    Returns the exit code, and what the command printed.
    """
    port, log = portpicker.pick_unused_port(), tmp_path / "log"
    arguments = make_arguments(tmp_path / "run", "--env", "Pendulum-v1", "--sampler", "prioritized")
    arguments[arguments.index("--data") + 1] = f"localhost:{port}"
    with (
        process(serve_directory, tables / "same", port) as (server, to_server),
        process(train_by_command, arguments, log) as (_, channel),
    ):
        receive(to_server)
        assert receive(channel) == "updates"
        server.kill()
        server.join()
        channel.send("continue")
        with ExitStack() as stack:
            if restarted is not None:
                time.sleep(1)
                _, to_restarted = stack.enter_context(process(serve_directory, tables / restarted, port))
                receive(to_restarted)
            with recovery(), within(60):
                code = receive(channel)
    return code, log.read_text()


@pytest.mark.drill("moved")
def test_training_continues_when_its_server_is_restarted(tmp_path, tables, recovery):
    code, printed = call(tmp_path, tables, "same", recovery)
    assert code == 0, printed
    steps = [int(row[0]) for row in read_rows(tmp_path / "run")[0]]
    assert steps == list(range(50, NUM_UPDATES + 1, 50))


@pytest.mark.drill("moved")
def test_training_saves_and_says_so_when_its_server_does_not_return(tmp_path, tables, recovery):
    code, printed = call(tmp_path, tables, None, recovery)
    assert code == 75
    (saved,) = re.findall(r"training stopped after \d+ iterations, which are saved in (\S+):", printed)
    assert Path(saved).is_dir() and printed.rstrip().endswith("start the server again")


@pytest.mark.drill("F28")
def test_training_names_the_column_when_its_server_returns_with_a_different_signature(tmp_path, tables, recovery):
    code, printed = call(tmp_path, tables, "different", recovery)
    assert code == 1
    assert (
        printed.count("item['action'] is float32 [3], but table 'replay' when sampling began expects float32 [1]") == 1
    )
    assert re.search(r"training stopped after \d+ iterations, which are saved in ", printed)
