"""Tests of npz archives, which are untrusted, and of D4RL's columns in one."""

import io
import zipfile

import numpy as np
import pytest

from rlds2reverb.datasets import load
from rlds2reverb.datasets.readers import npz
from rlds2reverb.errors import SourceError

ROWS = {
    "observations": np.arange(200.0)[:, None],
    "next_observations": np.arange(1.0, 201)[:, None],
    "actions": np.zeros((200, 1), np.float32),
    "rewards": np.arange(200.0, dtype=np.float32),
    "terminals": np.arange(200) % 10 == 4,
    "timeouts": np.arange(200) % 10 == 9,
    "infos/qpos": np.arange(400).reshape(200, 2),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_d4rl_columns_in_an_archive_equal_those_in_memory(tmp_path, save):
    save(tmp_path / "rows.npz", **ROWS)
    source = load(tmp_path / "rows.npz", extra_fields=["qpos"])
    assert (source.kind, source.num_rows, source.count()) == ("d4rl", 200, 40)
    for one, other in zip(source, load(ROWS, extra_fields=["qpos"]), strict=True):
        assert one.is_terminal == other.is_terminal
        for (path, column), (_, expected) in zip(one.columns, other.columns, strict=True):
            np.testing.assert_array_equal(column, expected, err_msg=str(path))
    assert [episode.index for episode in source.read(3, 5)] == [3, 4]


def test_split_at_discontinuity_compares_rows_across_blocks(tmp_path):
    rows = {name: column for name, column in ROWS.items() if name != "timeouts"}
    rows["terminals"] = np.zeros(200, bool)
    for name in ("observations", "next_observations"):
        rows[name] = rows[name].copy()
        rows[name][150:] += 9
    np.savez(tmp_path / "rows.npz", **rows)
    source = load(tmp_path / "rows.npz", split_at_discontinuity=True)
    assert [episode.num_transitions for episode in source] == [150, 50]


def test_columns_of_no_known_format_raise_and_are_named(tmp_path):
    np.savez(tmp_path / "x.npz", states=np.zeros(3), controls=np.zeros(3))
    with pytest.raises(
        SourceError, match=r"arrays of an npz file must be named as those of D4RL.* got controls, states"
    ):
        load(tmp_path / "x.npz")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i8", "?", "<f2", "<U3"])
def test_slices_of_rows_in_any_order_equal_the_array(tmp_path, order, dtype):
    array = np.arange(60).reshape(10, 3, 2).astype(dtype, order=order)
    np.savez_compressed(tmp_path / "x.npz", x=array, one=np.float32(3))
    with npz.open_npz(tmp_path / "x.npz") as arrays:
        for start, stop in ((0, 3), (3, 4), (3, 3), (7, 10), (8, 9), (2, 5), (0, 10), (5, 20)):
            np.testing.assert_array_equal(arrays["x"][start:stop], array[start:stop])
        np.testing.assert_array_equal(arrays["x"].read(), array)
        assert arrays["one"].read() == 3
        with pytest.raises(SourceError, match="'one' must be a column with one row per step, got a single number"):
            len(arrays["one"])


def write_member(path, content, *, name="observations.npy", compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(name, content)


def header_of(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_python_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", observations=np.array([{}, []], object))
    with pytest.raises(SourceError, match="'observations' contains Python objects, which are not unpickled"):
        load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "'observations' is not an array of NumPy"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': __import", "is not an array of NumPy"),
        (header_of(np.zeros(9))[:-8], "declares 72 bytes, but contains 64 bytes"),
        (header_of(np.zeros(9)) + b"more", "declares 72 bytes, but contains 76 bytes"),
    ],
)
def test_damaged_array_raises(tmp_path, content, message):
    write_member(tmp_path / "x.npz", content)
    with pytest.raises(SourceError, match=message):
        load(tmp_path / "x.npz")


def test_truncated_archive_raises(tmp_path):
    np.savez(tmp_path / "x.npz", **ROWS)
    data = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match="x.npz is damaged; copy or download it again"):
        load(tmp_path / "x.npz")


def test_changed_bytes_raise_while_reading(tmp_path):
    np.savez(tmp_path / "x.npz", **ROWS)
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[1000] ^= 1
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(SourceError, match="x.npz is damaged"):
        list(load(tmp_path / "x.npz"))


@pytest.mark.slow
def test_compression_bomb_raises_before_it_is_read(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", observations=np.zeros((200, 1 << 20), np.uint8))
    with pytest.raises(SourceError, match="looks like a compression bomb"):
        load(tmp_path / "x.npz")


def test_oversized_rows_raise(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "MAX_ROW_BYTES", 100)
    np.savez(tmp_path / "x.npz", observations=np.zeros((2, 101), np.uint8))
    with pytest.raises(SourceError, match="'observations' has rows of 101 bytes; the limit is 100 bytes"):
        load(tmp_path / "x.npz")


def test_duplicate_members_raise(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for _ in range(2):
            archive.writestr("observations.npy", header_of(np.zeros(3)))
    with pytest.raises(SourceError, match="must have at most 1,024 distinct members, got 2"):
        load(tmp_path / "x.npz")
