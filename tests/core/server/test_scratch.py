"""Temporary folders of servers: removed with their server, or by the next one if it was killed."""

import os
import tempfile

import pytest
from faults import hear, process
from reference_impls import episode

from rlds2reverb._server import scratch
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.errors import ResourceInUseError
from rlds2reverb.ingestion import ingest


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, which is empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def serve(channel, temporary, data):
    tempfile.tempdir = str(temporary)
    with ReplayServer(None, data=data) as server:
        channel.send(server.port)
        channel.recv()


def links(data):
    """How many names the chunks of a directory have."""
    (chunks,) = data.glob("checkpoints/*/chunks.tfrecord")
    return chunks.stat().st_nlink


def test_what_a_killed_server_left_goes_with_the_next_one_and_what_a_running_one_has_stays(tmp_path, temporary):
    data = tmp_path / "data"
    ingest([episode(5, terminal=True)], data)
    assert links(data) == 1
    with (
        process(serve, temporary, data) as (killed, to_killed),
        process(serve, temporary, data) as (running, to_running),
    ):
        assert hear(to_killed) != hear(to_running)
        killed.kill()
        killed.join()
        assert links(data) == 3
        with ReplayServer(None, data=data):
            assert links(data) == 3  # the running one's and this one's
        assert links(data) == 2
        to_running.send("end")
        running.join()
        assert links(data) == 1


def test_nothing_is_left_of_a_server_that_ends(tmp_path, temporary):
    data = tmp_path / "data"
    ingest([episode(5, terminal=True)], data)
    with ReplayServer(None, data=data) as server:
        assert (links(data), server.client.server_info(timeout=10)["replay"].current_size) == (2, 4)
    assert [list(folder.iterdir()) for folder in temporary.iterdir()] == [[]]


def test_the_folder_of_another_user_is_refused(temporary, monkeypatch):
    scratch.own_directory()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    (temporary / "rlds2reverb-12345").mkdir()
    with pytest.raises(
        ResourceInUseError, match=r"rlds2reverb-12345 belongs to user \d+, expected user 12345; remove it, or set"
    ):
        scratch.own_directory()
