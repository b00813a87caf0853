"""The rule: something is reused only if it was made from the same content by the same code and options.

Otherwise it is made again, or refused. Each place that reuses something is tried with each way in which data change.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import time

import h5py
import numpy as np
import pytest
from properties import mark_slow_except
from reference_impls import episode

from rlds2reverb import (
    CheckpointError,
    InvalidEpisodeError,
    ResumeError,
    SourceError,
    TrajectoryWindows,
    batches,
    ingest,
    load,
    write_dataset,
)
from rlds2reverb.datasets import Format, register_format
from rlds2reverb.datasets.loading import FORMATS
from rlds2reverb.datasets.steps.stores import build_store, open_store
from rlds2reverb.datasets.transforms import ActionBounds, ClipActions, apply_transforms
from rlds2reverb.reverb.wire import item_blocks
from rlds2reverb.reverb.writing import directory_destination
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.sources import open_data
from rlds2reverb.types import episode_batches
from rlds2reverb.types.spaces import make_array_space

NUM_EPISODES, NUM_ROWS = 6, 5
LAST = np.arange(NUM_EPISODES * NUM_ROWS) % NUM_ROWS == NUM_ROWS - 1


@pytest.fixture(autouse=True)
def write_each_episode(monkeypatch):
    """Makes everything be written episode by episode, so that an interruption leaves some of them."""
    monkeypatch.setattr(directory_destination, "PART_BYTES", 1)
    monkeypatch.setattr(episode_batches, "MAX_BATCH_BYTES", 1)
    monkeypatch.setattr(item_blocks, "GROUP_BYTES", 1)


class StoppedError(Exception):
    """Raised in the middle of what is being built."""


def write_d4rl(path, shift=0.0):
    """Writes a D4RL file whose rewards in the middle are shifted; the rewards of the first and last episode are not."""
    rows = np.arange(len(LAST), dtype=np.float32)
    rewards = rows + 100
    rewards[2 * NUM_ROWS : 3 * NUM_ROWS] += shift
    with h5py.File(path, "w") as file:
        file["observations"] = rows[:, None]
        file["actions"], file["rewards"] = np.sin(rows)[:, None], rewards
        file["terminals"], file["timeouts"] = np.zeros(len(rows), bool), LAST
    return path


def shift_in_place(path, *, keeps_times=False):
    status = path.stat()
    with h5py.File(path, "r+") as file:
        file["rewards"][2 * NUM_ROWS : 3 * NUM_ROWS] += np.float32(50)
    if keeps_times:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_file(path):
    """Puts a different file of the same size and time at the path."""
    status = path.stat()
    other = write_d4rl(path.with_name("other"), 50)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


def relabel(source, bonus):
    """Returns a source that user code has changed: a function reads it differently."""

    def read(*bounds):
        for one in source.read(*bounds):
            yield dataclasses.replace(
                one, steps={**one.steps, "reward": one.steps["reward"] + bonus * (one.index == 2)}
            )

    return dataclasses.replace(source, read=read)


class AddBonus:
    """A custom transform, whose options are in no description."""

    def __init__(self, bonus):
        self._bonus = bonus

    def fit(self, source):
        def apply(one):
            return dataclasses.replace(
                one, steps={**one.steps, "reward": one.steps["reward"] + self._bonus * (one.index == 2)}
            )

        return apply, {}


def transform(source, *transforms):
    return apply_transforms(source, transforms)[0]


def change_file(change, **options):
    """Returns openers of a file before and after a change."""

    def make(folder):
        path = write_d4rl(folder / "d.hdf5")

        def open_changed():
            change(path)
            return load(path)

        return lambda: load(path), open_changed

    return make


def change_options(open_first, open_second):
    """Returns openers of one unchanged file in two ways."""

    def make(folder):
        path = write_d4rl(folder / "d.hdf5")
        return (lambda: open_first(path)), (lambda: open_second(path))

    return make


def exchange_one_of_several(folder):
    a, b, c = (write_d4rl(folder / f"{name}.hdf5", shift) for name, shift in (("a", 0), ("b", 1), ("c", 2)))
    x = write_d4rl(folder / "x.hdf5", 9)
    return (lambda: load([a, b, c])), (lambda: load([a, x, c]))


def point_link_elsewhere(folder):
    link = folder / "link.hdf5"
    link.symlink_to(write_d4rl(folder / "a.hdf5"))
    other = write_d4rl(folder / "b.hdf5", 50)

    def open_changed():
        link.unlink()
        link.symlink_to(other)
        return load(link)

    return (lambda: load(link)), open_changed


def change_a_file_of_a_directory(folder):
    directory = folder / "episodes"
    directory.mkdir()
    for number in range(4):
        columns = {"image": np.full((4, 2, 2, 3), number, np.uint8), "action": np.ones((4, 1), np.float32)}
        columns |= {"reward": np.full(4, number, np.float32), "discount": np.ones(4, np.float32)}
        np.savez(directory / f"20200101T00000{number}_{number}_3.npz", **columns)

    def open_changed():
        columns["reward"] = np.full(4, 77, np.float32)
        np.savez(directory / "20200101T000001_1_3.npz", **columns)
        return load(directory)

    return (lambda: load(directory)), open_changed


def grow_a_function(folder):
    counts = iter((4, 4, 6))

    def open_one():
        count = next(counts)
        return load(lambda: (episode(3, terminal=True, start=10.0 * number) for number in range(count)))

    next(counts)
    return open_one, open_one


def edit_a_list(folder):
    episodes = [episode(3, terminal=True, start=10.0 * number) for number in range(5)]

    def open_changed():
        episodes[2]["reward"][1] += 50
        return load(episodes)

    return (lambda: load(episodes)), open_changed


def change_a_stored_dataset(folder):
    def open_shifted(shift):
        shutil.rmtree(folder / "source", ignore_errors=True)
        build_store(load(write_d4rl(folder / "d.hdf5", shift)), folder / "source", num_workers=0)
        return transform(load(folder / "source"), ActionBounds(-1, 1))

    return (lambda: open_shifted(0)), (lambda: open_shifted(50))


def change_a_custom_format(folder):
    path, shift = folder / "x.demo", iter((0, 50))
    path.write_text("")

    def open_demo(location):
        return load(write_d4rl(folder / "d.hdf5")) if next(shift) == 0 else relabel(load(folder / "d.hdf5"), 50)

    def open_one():
        register_format(Format("a demo", lambda location: location == path, open_demo))
        try:
            return load(path)
        finally:
            del FORMATS[0]

    return open_one, open_one


def limit_actions(path, limit):
    source = load(path)
    return transform(
        dataclasses.replace(source, action_space=make_array_space(source.step_spec["action"], -limit, limit)),
        ClipActions(),
    )


#: Ways in which a dataset changes: functions of a folder that return two functions, which open it before and after.
CHANGES = {
    "rewards in the middle of a file": change_file(shift_in_place),
    "a file whose times are restored": change_file(lambda path: shift_in_place(path, keeps_times=True)),
    "a file with another inode": change_file(replace_file),
    "the target of a link": point_link_elsewhere,
    "one of several files": exchange_one_of_several,
    "one file of a directory": change_a_file_of_a_directory,
    "more episodes of a function": grow_a_function,
    "a list in memory": edit_a_list,
    "a store that is the source": change_a_stored_dataset,
    "the code of a custom format": change_a_custom_format,
    "an option of load": change_options(load, lambda path: load(path, max_episode_steps=3)),
    "a transform": change_options(load, lambda path: transform(load(path), ActionBounds(-0.5, 0.5), ClipActions())),
    "an option of a transform": change_options(
        *(lambda path, eps=eps: transform(load(path), ActionBounds(-0.5, 0.5), ClipActions(eps)) for eps in (0.1, 0.2))
    ),
    "a space that a transform uses": change_options(
        *(lambda path, limit=limit: limit_actions(path, limit) for limit in (0.5, 0.4))
    ),
    "a custom transform": change_options(
        *(lambda path, bonus=bonus: transform(load(path), AddBonus(bonus)) for bonus in (1, 2))
    ),
    "a function that reads": change_options(
        *(lambda path, bonus=bonus: relabel(load(path), bonus) for bonus in (1, 2))
    ),
    "a function that reads, under a transform": change_options(
        *(lambda path, bonus=bonus: transform(relabel(load(path), bonus), ActionBounds(-1, 1)) for bonus in (1, 2))
    ),
}  # fmt: skip


def summarize_steps(steps):
    return sorted(
        (float(reward), *np.asarray(action, float).ravel().tolist(), float(discount))
        for reward, action, discount in zip(steps["reward"], steps["action"], steps["discount"], strict=True)
    )


def read_batches(source, folder):
    """Returns what `batches` yields from a directory of stores."""
    return summarize_steps(next(iter(batches(source, 1000, epochs=1, store_dir=folder))))


def read_training_data(source, folder):
    """Returns what a training run reads from its `store_dir`."""
    items = open_data(source, TrainingConfig("td3_bc", store_dir=str(folder), env=None)).items
    read = items.read_items(np.arange(items.num_items))
    return summarize_steps({**read, "reward": read["reward"].reshape(items.num_items)})


def stop_in_the_middle(*_):
    stop_in_the_middle.calls += 1
    if stop_in_the_middle.calls == 4:  # After episode 2, which changes.
        raise StoppedError


def build_interrupted(source, folder):
    """Returns the episodes of a store whose building is interrupted the first time."""
    stop_in_the_middle.calls = 0 if not folder.exists() else 9
    build_store(source, folder, num_workers=0, on_progress=stop_in_the_middle)
    return [one.steps["reward"].tolist() for one in open_store(folder).read()]


def write_interrupted(source, folder):
    """Returns the episodes of a dataset whose writing is interrupted the first time, after it has been stored."""
    stop_in_the_middle.calls = 0 if not folder.exists() else 9
    folder.mkdir(exist_ok=True)
    write_dataset(
        source, folder / "d.hdf5", format="d4rl", num_workers=0, recompute_discounts=True, progress=stop_in_the_middle
    )
    return [one.steps["reward"].tolist() for one in load(folder / "d.hdf5").read()]


def convert_interrupted(source, folder):
    """Returns the report of a conversion that is interrupted the first time, and continued."""
    stop_in_the_middle.calls = 0 if not folder.exists() else 9
    folder.mkdir(exist_ok=True)
    report = ingest(source, folder / "tables", progress=stop_in_the_middle)
    return report.fingerprint, report.items


PLACES = {
    function.__name__: function
    for function in (read_batches, read_training_data, build_interrupted, write_interrupted, convert_interrupted)
}
pytestmark = pytest.mark.filterwarnings("ignore::rlds2reverb.IngestWarning")
#: The fast tests try every place with one change, and one place with the changes that are hardest to notice.
PAIRS = [(place, change) for place in PLACES for change in CHANGES]
FAST_CHANGES = ("a file whose times are restored", "one file of a directory", "more episodes of a function")
FAST_CHANGES += ("a space that a transform uses", "a function that reads, under a transform", "an option of load")
FAST = [
    (place, change)
    for place, change in PAIRS
    if (place == "read_batches" and change in FAST_CHANGES) or change == "one of several files"
]


@pytest.mark.parametrize(("place", "change"), mark_slow_except(FAST, PAIRS))
def test_changed_data_are_made_again_or_refused(tmp_path, place, change):
    open_first, open_second = CHANGES[change](tmp_path)
    read = PLACES[place]
    with contextlib.suppress(StoppedError):
        read(open_first(), tmp_path / "reused")
    assert (tmp_path / "reused").exists()
    source = open_second()
    try:
        got = read(source, tmp_path / "reused")
    except (SourceError, ResumeError, CheckpointError) as error:
        assert place.endswith("interrupted") and re.search("match|different", str(error)), error
    else:
        (tmp_path / "new").mkdir()
        assert got == read(source, tmp_path / "new")


@pytest.mark.parametrize("place", mark_slow_except(["read_batches"], ["read_batches", "read_training_data"]))
def test_unchanged_data_are_reused(tmp_path, place):
    path = write_d4rl(tmp_path / "d.hdf5")
    source = transform(load([path, path]), ActionBounds(-0.5, 0.5), ClipActions())
    got = [PLACES[place](source, tmp_path / "reused")]
    (built,) = (tmp_path / "reused").iterdir()
    written = (built / "store.json").stat().st_mtime_ns
    again = transform(load([path, path]), ActionBounds(-0.5, 0.5), ClipActions())
    got.append(PLACES[place](again, tmp_path / "reused"))
    assert [*(tmp_path / "reused").iterdir()] == [built] and got[0] == got[1]
    assert (built / "store.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("kind", ["file", "function"])
def test_data_that_change_while_they_are_stored_are_refused(tmp_path, kind):
    path, numbers = write_d4rl(tmp_path / "d.hdf5"), iter(range(99))
    random = load(lambda: (episode(3, terminal=True, start=next(numbers)) for _ in range(3)))

    def change(stored, total):
        if stored == 2 and kind == "file":
            os.utime(path)

    with pytest.raises(SourceError, match="changed while it was read"):
        build_store(load(path) if kind == "file" else random, tmp_path / "s", num_workers=0, on_progress=change)
    assert not [*(tmp_path / "s").iterdir()]
    with pytest.raises(SourceError, match="is no|contains no dataset"):
        load(tmp_path / "s")


def test_source_whose_file_has_changed_since_it_was_opened_is_read_again(tmp_path):
    path = write_d4rl(tmp_path / "d.hdf5")
    source = load(path)
    assert source.identify() is not None and load([path]).identify() == source.identify()
    shift_in_place(path)
    assert source.identify() is None and load(path).identify() is not None
    assert read_batches(source, tmp_path / "stores") == read_batches(load(path), tmp_path / "new")


def test_source_with_custom_transform_is_unknown(tmp_path):
    source = load(write_d4rl(tmp_path / "d.hdf5"))
    assert transform(source, ActionBounds(-1, 1)).identify() is not None
    assert transform(source, AddBonus(1)).identify() is None


def test_repaired_file_is_stored_again(tmp_path):
    path = write_d4rl(tmp_path / "d.hdf5", np.nan)
    for _ in range(2):
        with pytest.raises(InvalidEpisodeError, match=r"NaN.*\(episode 2"):
            read_batches(path, tmp_path / "stores")
    write_d4rl(path)
    assert len(read_batches(path, tmp_path / "stores")) == NUM_EPISODES * (NUM_ROWS - 1)


@pytest.mark.parametrize("kind", mark_slow_except({"priority"}, ["adder", "priority"]))
def test_conversion_with_edited_code_is_not_continued(tmp_path, kind):

    def convert(factor):
        def compute_priority(one, items):
            return 1.0 if one.index < 2 else factor

        def double_later_rewards(one):
            scale = 1.0 if one.index < 2 else factor
            return TrajectoryWindows()(
                dataclasses.replace(one, steps={**one.steps, "reward": one.steps["reward"] * scale})
            )

        double_later_rewards.item_spec = TrajectoryWindows().item_spec

        def stop_once_written(*_):
            until = time.monotonic() + 0.3
            while is_first_run and not journal.exists() and time.monotonic() < until:
                time.sleep(0.01)  # Another thread writes it.
            if is_first_run and journal.exists():
                raise StoppedError

        options = {"adder": double_later_rewards} if kind == "adder" else {"priority": compute_priority}
        return ingest(write_d4rl(tmp_path / "d.hdf5"), tmp_path / "tables", progress=stop_once_written, **options)

    journal = tmp_path / "tables.partial/journal.json"
    is_first_run = True
    with pytest.raises(StoppedError):
        convert(2.0)
    is_first_run = False
    with pytest.raises(CheckpointError, match="or the code of the adder or priority has changed"):
        convert(3.0)
    assert convert(2.0).resumed_episodes
