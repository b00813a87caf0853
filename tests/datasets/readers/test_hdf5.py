"""Tests of safe reading of HDF5: files that refer to other files or are too large raise before data are read."""

import gzip
import os
import pickle
import shutil

import h5py
import numpy as np
import pytest
from compression_bombs import write_zeros

from rlds2reverb.datasets import load
from rlds2reverb.datasets.readers import hdf5
from rlds2reverb.datasets.readers.d4rl import open_d4rl
from rlds2reverb.errors import SourceError


@pytest.fixture
def d4rl_file(tmp_path):
    """Returns a function that writes a D4RL file of ten rows; the test writes `rewards` itself."""

    def make(write_rewards):
        path = tmp_path / "file.hdf5"
        with h5py.File(path, "w") as file:
            file["observations"] = np.zeros((10, 3), np.float32)
            file["actions"] = np.zeros((10, 2), np.float32)
            file["terminals"] = np.arange(10) == 9
            file["timeouts"] = np.zeros(10, bool)
            write_rewards(file)
        return path

    return make


@pytest.mark.drill("F21")
def test_external_raw_storage_raises(d4rl_file, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 40)

    def write(file):
        file.create_dataset("rewards", (10,), "f4", external=[(str(secret), 0, 40)])

    with pytest.raises(SourceError, match=r"'rewards' stores its data in another file \(.*secret"):
        open_d4rl(d4rl_file(write))


@pytest.mark.drill("F21")
def test_virtual_dataset_raises(d4rl_file, tmp_path):
    def write(file):
        layout = h5py.VirtualLayout((10,), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "x", shape=(10,))
        file.create_virtual_dataset("rewards", layout)

    with pytest.raises(SourceError, match="'rewards' is a virtual dataset"):
        open_d4rl(d4rl_file(write))


@pytest.mark.drill("F21")
def test_objects_and_links_raise(d4rl_file):
    def strings(file):
        file.create_dataset("rewards", (10,), h5py.string_dtype())

    def loop(file):
        file["rewards"] = h5py.SoftLink("/rewards")

    def vlen(file):
        file.create_dataset("rewards", (10,), h5py.vlen_dtype(np.float32))

    for write, message in ((strings, "Python objects or strings"), (vlen, "Python objects"), (loop, "is a soft link")):
        with pytest.raises(SourceError, match=message):
            open_d4rl(d4rl_file(write))


@pytest.mark.drill("F21")
def test_sizes_above_the_limit_raise(d4rl_file):
    def huge(file):
        file.create_dataset("rewards", (10**15,), "f8", chunks=(1024,), compression="gzip")

    with pytest.raises(SourceError, match=r"'rewards' declares 8,000.0 TB; the limit is 274.9 GB"):
        open_d4rl(d4rl_file(huge))


@pytest.mark.drill("F21")
def test_compression_bomb_in_an_extra_field_raises(data):
    path = data / "malformed/hdf5/bomb_gzip.hdf5"
    with pytest.raises(
        SourceError, match=r"'infos/zeros' would expand .* more than 200 times; it looks like a compression bomb"
    ):
        open_d4rl(path, extra_fields=["zeros"])


@pytest.mark.drill("F21")
def test_huge_chunk_raises(d4rl_file, monkeypatch):
    def write(file):
        file.create_dataset("rewards", data=np.zeros((10, 1), np.float32), chunks=(10, 1))

    monkeypatch.setattr(hdf5, "MAX_CHUNK_BYTES", 16)
    with pytest.raises(SourceError, match=r"has rows or chunks of .* bytes; the limit is 16 bytes"):
        open_d4rl(d4rl_file(write))


def test_damaged_chunk_raises_an_error_that_names_the_file(d4rl_file):
    path = d4rl_file(
        lambda file: file.create_dataset("rewards", data=np.random.rand(10), chunks=(10,), compression="gzip")
    )
    with h5py.File(path) as file:
        offset = file["rewards"].id.get_chunk_info(0).byte_offset
    damaged = bytearray(path.read_bytes())
    damaged[offset : offset + 20] = b"\xff" * 20
    path.write_bytes(damaged)
    with pytest.raises(
        SourceError, match=r"file.hdf5 is damaged; copy or download it again \(.*filter returned failure"
    ):
        list(open_d4rl(path))


@pytest.mark.slow
@pytest.mark.drill("fuzzing")
def test_flipped_bits_raise_a_source_error_or_are_harmless(tmp_path):
    """Flips one bit per 64 bytes, one at a time: in links, shapes, types, chunk addresses and chunks."""
    path, random = tmp_path / "file.hdf5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, width in (("observations", (3,)), ("actions", (2,)), ("rewards", ()), ("terminals", ())):
            values = np.zeros((10, *width), np.float32)
            file.create_dataset(name, data=values, chunks=(4, *width), compression="gzip")
    valid = path.read_bytes()
    num_errors = 0
    for position in range(8, len(valid) - 64, 64):
        damaged = bytearray(valid)
        damaged[position + random.integers(64)] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        try:
            list(open_d4rl(path, max_episode_steps=5))
        except SourceError:
            num_errors += 1
    assert num_errors > 10


def test_type_unknown_to_numpy_raises(d4rl_file):
    def write(file):
        h5py.h5d.create(file.id, b"rewards", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((10,)))

    with pytest.raises(SourceError, match="'rewards' is damaged, or has a type that NumPy does not support"):
        open_d4rl(d4rl_file(write))


def test_non_utf8_names_raise_only_if_they_are_used(d4rl_file, robomimic_file):
    def add_to_metadata(file):
        file["rewards"] = np.zeros(10)
        file["metadata/algorithm"] = 1
        file["metadata"][b"caf\xe9"] = 2

    assert open_d4rl(d4rl_file(add_to_metadata)).metadata == {"algorithm": 1}

    def add_to_observations(file):
        file["data/demo_0/obs"][b"caf\xe9"] = np.zeros(59)

    with pytest.raises(SourceError, match=r"'/data/demo_0/obs' has a member named b'caf\\xe9'; rename it in UTF-8"):
        list(load(robomimic_file(add_to_observations)))


def test_open_column_returns_numbers_or_none(d4rl_file):
    path = d4rl_file(lambda file: file.create_dataset("rewards", data=np.arange(10.0), compression="gzip"))
    with hdf5.open_hdf5(path) as file:
        assert hdf5.open_column(file, "rewards")[3] == 3.0
        assert hdf5.open_column(file, "nothing/there") is None


@pytest.mark.drill("F21")
def test_read_column_returns_what_open_column_does(d4rl_file, tmp_path):
    numbers = np.arange(20).reshape(10, 2)

    def write(file):
        for dtype in ("?", "i1", "<u8", ">f4", "f2", "f8"):
            file[dtype.strip("<>?") or "bool"] = numbers.astype(dtype)
        file.create_dataset("chunked", data=numbers, compression="gzip", chunks=(3, 2))
        file.create_dataset("compact", data=numbers, dcpl=compact)
        file.create_dataset("empty", data=np.zeros((0, 3)))
        file["single"] = 3.5
        file["link"], file["text"], file["null"] = h5py.SoftLink("/f8"), "x", h5py.Empty("f4")
        file.create_dataset("external", (10,), "f4", external=[(str(tmp_path / "secret"), 0, 40)])
        file.create_virtual_dataset("virtual", layout)

    (tmp_path / "secret").write_bytes(b"s" * 40)
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    layout = h5py.VirtualLayout((10,), "f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "x", shape=(10,))
    with h5py.File(d4rl_file(write)) as file:
        for name in ("bool", "i1", "u8", "f4", "f2", "f8", "chunked", "compact", "empty", "single"):
            got, expected = hdf5.read_column(file, name), file[name][()]
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape) and (got == expected).all(), name
        assert hdf5.read_column(file, "missing") is None
        for name, message in (
            ("link", "soft link"),
            ("text", "numbers"),
            ("null", "null"),
            ("external", "another file"),
            ("virtual", "virtual dataset"),
        ):
            with pytest.raises(SourceError, match=message):
                hdf5.read_column(file, name)


def test_columns_that_are_a_compression_bomb_in_total_raise(tmp_path):
    with h5py.File(tmp_path / "bomb.hdf5", "w") as file:
        for name in ("observations", "actions", "rewards"):
            write_zeros(file, name, 15_000_000, "f4")
        for name in ("terminals", "timeouts"):
            write_zeros(file, name, 15_000_000, "?")
    with pytest.raises(SourceError, match="all columns together would expand .* it looks like a compression bomb"):
        open_d4rl(tmp_path / "bomb.hdf5")


@pytest.mark.parametrize(("num_written", "num_missing"), [(0, 5), (4, 3)])
def test_incompletely_written_dataset_raises(d4rl_file, num_written, num_missing):
    def write(file):
        dataset = file.create_dataset("rewards", (10,), "f4", chunks=(2,))
        if num_written:
            dataset[:num_written] = 1

    message = f"'rewards' is missing {num_missing} of its chunks, because it was not written completely"
    with pytest.raises(SourceError, match=message):
        open_d4rl(d4rl_file(write))


@pytest.mark.drill("F21")
def test_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "x.hdf5")
    with pytest.raises(SourceError, match="x.hdf5 is not a regular file"):
        open_d4rl(tmp_path / "x.hdf5")


def test_file_with_a_user_block_is_read(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w", userblock_size=512) as file:
        file["rewards"] = np.arange(3.0)
    with hdf5.open_hdf5(tmp_path / "x.hdf5") as file:
        assert hdf5.open_column(file, "rewards")[1] == 1.0


# --- robomimic


@pytest.fixture
def robomimic_file(data, tmp_path):
    """Returns a function that changes a copy of the robomimic file."""

    def make(change):
        path = tmp_path / "lift.hdf5"
        shutil.copy(data / "tfds_fake/robomimic_ph/lift_low_dim.hdf5", path)
        with h5py.File(path, "a") as file:
            change(file)
        return path

    return make


def replace(name, value):
    def change(file):
        del file[name]
        if value is not None:
            file[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace("data/demo_0/rewards", None), "'data/demo_0/rewards' is missing"),
        (replace("data/demo_0/rewards", np.zeros(3)), "all columns must have the same number of rows >= 1, got"),
        (
            replace("data/demo_0/dones", np.float32(1)),
            "'data/demo_0/dones' must be a column with one row per step, got a single",
        ),
        (replace("data/demo_0/dones", np.full(59, np.nan)), r"dones\[0\] must be 0 or 1, got nan"),
        (replace("data/demo_0/obs", np.zeros(59)), "'data/demo_0/obs' is missing, or is not a group"),
        (
            replace("data/demo_0/next_obs/object", None),
            "obs and next_obs must have the same columns; they differ in object",
        ),
        (replace("data", np.zeros(3)), "has no 'observations'"),
        (replace("data/demo_0/obs", h5py.ExternalLink("/etc/passwd", "/")), "is a link to another file"),
    ],
)
def test_damaged_robomimic_file_raises(robomimic_file, change, message):
    with pytest.raises(SourceError, match=message):
        list(load(robomimic_file(change)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1\x15\x04\x15", "it is parquet; pass the directory of the LeRobot dataset"),
        (b'\xef\xbb\xbf{"codebase_version":\r\n "v3.0"}', "it is JSON; pass the directory of the dataset"),
        (b'[{"x": 1}]', "it is JSON"),
        (pickle.dumps([{"observations": 1}]), "it is a pickle, which may run any code and is not read"),
        (b"\0\0\0\x20ftypisom", "it is a video"),
        (gzip.compress(b"x", mtime=0), "it is compressed with gzip; unpack it"),
        (b"\x89MCAP0\r\n", "it is a bag; name it"),
        (b"#ROSBAG V2.0\n", "it is a bag of ROS 1; convert it with rosbags-convert"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS; run git lfs pull"),
        (b"\x10\1\0\0\0\0\0\0abcd", "it may be a TFRecord; pass the directory that contains dataset_info.json"),
        (b"\xef\xbb\xbfepisode,position\r\n0,1.5\r\n", "it is text; read it and pass the list of episodes"),
        (b"\xff" * 40, "$"),
    ],
)
def test_file_of_a_different_kind_is_named_with_advice(tmp_path, content, message):
    path = tmp_path / "x.data"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rf"x.data is not an HDF5 file \(it has no HDF5 signature\).*{message[:40]}"):
        load(path)
