"""Tests that sealed files and folders are complete or absent, and that any damage is detected."""

import os

import pytest

from rlds2reverb.errors import CorruptFileError, StorageFullError
from rlds2reverb.system.sealed_files import (
    MANIFEST,
    SealedFolders,
    is_temporary,
    load_json,
    read_manifest,
    replace_file,
    replace_text,
    save_json,
)


def test_load_json_returns_the_content_saved_last(tmp_path):
    path = tmp_path / "journal.json"
    assert load_json(path) is None
    for content in ({"seen": 1}, {"seen": 2, "nested": {"a": [1, 2.5, None, "x"]}}):
        save_json(path, content)
        assert load_json(path) == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["journal.json"]


@pytest.mark.drill("fuzzing")
def test_load_json_raises_for_any_changed_byte(tmp_path):
    path = tmp_path / "journal.json"
    save_json(path, {"seen": 12, "name": "x"})
    content_bytes = path.read_bytes()
    for position in range(len(content_bytes)):
        if content_bytes[position] in b" \n":
            continue
        path.write_bytes(
            content_bytes[:position] + bytes([content_bytes[position] ^ 1]) + content_bytes[position + 1 :]
        )
        with pytest.raises(CorruptFileError, match="journal.json is damaged"):
            load_json(path)
    for content in (
        b"",
        content_bytes[: len(content_bytes) // 2],
        b"[]",
        b'{"xxh3_128": 1}',
        b"\xff\xff",
        b"[" * 100_000,
    ):
        path.write_bytes(content)
        with pytest.raises(CorruptFileError):
            load_json(path)


def test_failed_save_keeps_the_previous_content(tmp_path, monkeypatch):
    path = tmp_path / "journal.json"
    save_json(path, {"seen": 1})

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_json(path, {"seen": 2})
    assert load_json(path) == {"seen": 1} and os.listdir(tmp_path) == ["journal.json"]


def test_other_files_with_the_same_stem_are_kept(tmp_path):
    (tmp_path / "o.tmp").write_text("mine")
    for content in ("1", "2"):
        replace_text(tmp_path / "o.json", content)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"o.tmp": "mine", "o.json": "2"}


def test_temporary_file_is_hidden_and_recognised(tmp_path):
    with replace_file(tmp_path / "o.json") as temporary:
        temporary.write_text("1")
        assert temporary.parent == tmp_path and temporary.name.startswith(".") and is_temporary(temporary.name)
    assert os.listdir(tmp_path) == ["o.json"] and not is_temporary("o.tmp") and not is_temporary(".o.tmp")


def make_fill(text):
    """Returns a function that fills a folder with three files, one of them in a subfolder."""

    def write(folder):
        (folder / "a").write_text(text)
        (folder / "empty").touch()
        (folder / "sub").mkdir()
        (folder / "sub" / "b").write_text(text)
        return {"note": text}

    return write


def test_folders_are_numbered_and_keep_their_content(tmp_path):
    folders = SealedFolders(tmp_path, "save-")
    assert folders.write(3, make_fill("three")) == tmp_path / "save-0000000003"
    folders.write(12, make_fill("twelve"))
    folders.write(3, make_fill("again"))
    assert folders.numbers() == [3, 12] and read_manifest(folders.path(3))["note"] == "again"
    assert (folders.path(3) / "a").read_text() == "again"
    folders.delete([3])
    assert folders.numbers() == [12] and [entry.name for entry in tmp_path.iterdir()] == ["save-0000000012"]


@pytest.mark.parametrize("name", ["a", "empty", "sub/b", MANIFEST])
@pytest.mark.parametrize("damage", ["changed", "removed"])
def test_read_manifest_names_the_damaged_file(tmp_path, name, damage):
    folder = SealedFolders(tmp_path).write(1, make_fill("text"))
    if damage == "removed":
        (folder / name).unlink()
    else:
        (folder / name).write_text("texu")
    with pytest.raises(CorruptFileError, match=rf"{name} is {'missing' if damage == 'removed' else 'damaged'}"):
        read_manifest(folder)


def test_failed_write_keeps_complete_folders(tmp_path):
    folders = SealedFolders(tmp_path)
    folders.write(1, make_fill("kept"))

    def fail(folder):
        (folder / "a").write_text("half")
        raise OSError(28, "No space left on device")

    for number in (1, 2):
        with pytest.raises(StorageFullError, match="no space left for .*; existing data are kept"):
            folders.write(number, fail)
    assert [entry.name for entry in tmp_path.iterdir()] == ["0000000001"]
    assert read_manifest(folders.path(1))["note"] == "kept"


@pytest.mark.drill("F7")
def test_folders_of_a_killed_process_are_cleaned_up(tmp_path):
    folders = SealedFolders(tmp_path)
    folders.write(1, make_fill("one"))
    folders.write(2, make_fill("two"))
    folders.path(1).rename(tmp_path / "0000000001.replaced")  # Simulates a kill between the two renames of a write.
    (tmp_path / "0000000003.partial").mkdir()  # Simulates a kill while files are written.
    (tmp_path / "0000000002.replaced").mkdir()  # Simulates a kill before the replaced folder is deleted.
    again = SealedFolders(tmp_path)
    assert again.numbers() == [1, 2] and read_manifest(again.path(1))["note"] == "one"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0000000001", "0000000002"]
