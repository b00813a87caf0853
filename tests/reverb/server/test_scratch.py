"""Tests that a server's temporary folder is removed when it stops, or by the next server if it was killed."""

import os
import tempfile

import pytest
from faults import process, receive
from reference_impls import episode

from rlds2reverb.errors import ResourceInUseError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.server import scratch
from rlds2reverb.reverb.server.replay_server import ReplayServer


@pytest.fixture
def temp_folder(tmp_path, monkeypatch):
    """Provides an empty folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def serve(channel, temp_folder, data):
    tempfile.tempdir = str(temp_folder)
    with ReplayServer(directory=data) as server:
        channel.send(server.port)
        channel.recv()


def count_links(data):
    """Returns the number of hard links to the chunks of a directory."""
    (chunks,) = data.glob("checkpoints/*/chunks.tfrecord")
    return chunks.stat().st_nlink


@pytest.mark.slow
def test_next_server_removes_only_the_folder_of_a_killed_one(tmp_path, temp_folder):
    data = tmp_path / "data"
    ingest([episode(5, terminal=True)], data)
    assert count_links(data) == 1
    with (
        process(serve, temp_folder, data) as (killed, to_killed),
        process(serve, temp_folder, data) as (running, to_running),
    ):
        assert receive(to_killed) != receive(to_running)
        killed.kill()
        killed.join()
        assert count_links(data) == 3
        with ReplayServer(directory=data):
            assert count_links(data) == 3  # The data, the running server and this server each have a link.
        assert count_links(data) == 2
        to_running.send("end")
        running.join()
        assert count_links(data) == 1


@pytest.mark.slow
def test_server_removes_its_folder_when_it_stops(tmp_path, temp_folder):
    data = tmp_path / "data"
    ingest([episode(5, terminal=True)], data)
    with ReplayServer(directory=data) as server:
        assert (count_links(data), server.client.server_info(timeout=10)["replay"].current_size) == (2, 4)
    assert [list(folder.iterdir()) for folder in temp_folder.iterdir()] == [[]]


def test_folder_of_another_user_raises(temp_folder, monkeypatch):
    scratch.user_directory()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    (temp_folder / "rlds2reverb-12345").mkdir()
    with pytest.raises(
        ResourceInUseError, match=r"rlds2reverb-12345 must belong to user 12345, but belongs to user \d+; remove it"
    ):
        scratch.user_directory()
