"""Files on Beam's filesystems, of which the tests have the local one."""

import os

import pytest
from lazy_beam import make_options

from rlds2reverb.errors import SourceError


@pytest.fixture
def storage():
    make_options()  # Skips the test without Apache Beam.
    from rlds2reverb.beam import storage

    return storage


def write_folder(folder):
    for name in ("a.txt", "rlds2reverb.json", "z/b.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 3)
    return folder


def read_all(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_and_folders_are_copied_under_their_name(storage, tmp_path, monkeypatch):
    monkeypatch.setattr(
        storage.FileSystems, "exists", os.path.isfile
    )  # As in stores of objects, which have no folders.
    folder = write_folder(tmp_path / "data")
    for location in (str(folder), f"{folder}/"):
        copy = storage.copy_to_disk(location)
        assert copy.name == "data" and copy != folder and read_all(copy) == read_all(folder)
    copy = storage.copy_to_disk(f"{folder}/a.txt")
    assert copy.name == "a.txt" and copy.read_bytes() == b"a.txt" * 3
    with pytest.raises(SourceError, match="there is no object at .*/missing; check the address"):
        storage.copy_to_disk(f"{tmp_path}/missing")


def test_uploaded_folders_are_complete_once_their_description_is_there(storage, tmp_path):
    folder, uploaded = write_folder(tmp_path / "data"), tmp_path / "uploaded"
    storage.upload(folder, f"{uploaded}/")
    assert read_all(uploaded) == read_all(folder)
    assert max(read_all(uploaded), key=lambda name: os.stat(uploaded / name).st_mtime_ns) == "rlds2reverb.json"


def test_locations_are_paths_names_and_patterns_in_order(storage, tmp_path):
    folder = write_folder(tmp_path / "data[1]")
    pattern, name = f"{tmp_path}/data*/*.*", "mujoco/hopper/expert-v0"
    found = storage.expand_locations([name, pattern, f"{folder}/z"])
    assert found == [name, f"{folder}/a.txt", f"{folder}/rlds2reverb.json", f"{folder}/z"]
