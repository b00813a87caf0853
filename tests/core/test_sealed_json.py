"""Small files that know whether they are what was written."""

import pytest

from rlds2reverb import _sealed_json as sealed_json
from rlds2reverb.errors import CorruptFileError


def test_what_was_saved_is_loaded_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "journal.json"
    assert sealed_json.load(path) is None
    for content in ({"seen": 1}, {"seen": 2, "nested": {"a": [1, 2.5, None, "x"]}}):
        sealed_json.save(path, content)
        assert sealed_json.load(path) == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["journal.json"]


def test_any_changed_byte_is_found(tmp_path):
    path = tmp_path / "journal.json"
    sealed_json.save(path, {"seen": 12, "name": "x"})
    whole = path.read_bytes()
    for place in range(len(whole)):
        if whole[place] in b" \n":
            continue
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CorruptFileError, match="journal.json is damaged"):
            sealed_json.load(path)
    for content in (b"", whole[: len(whole) // 2], b"[]", b'{"sha256": 1}', b"\xff\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(CorruptFileError):
            sealed_json.load(path)
