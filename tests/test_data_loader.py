"""Tests of `batches`: the items of the adders, exact epochs and shards, continuation, formats without TensorFlow."""

import io
import itertools
import math
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import tree
from hypothesis import given, strategies as st
from PIL import Image
from reference_impls import assert_equal_nests, episode

from rlds2reverb import ReplayServer, StepOffsets, TableConfig, Transitions, Windows, batches, ingest, load
from rlds2reverb.adders import NStep, ReturnToGo, StepWindows
from rlds2reverb.errors import InvalidEpisodeError, SourceError
from rlds2reverb.types.episodes import Episode

EPISODES = [episode(length, terminal=length % 2 == 0, start=20.0 * length) for length in (4, 1, 7, 3)]
SOURCE = load(EPISODES)
NUM_TRANSITIONS = 11
CHUNKS = StepOffsets({"observation": 0, "action": range(2), "language_instruction": 0})


def make_images(count):
    images = np.empty(count, object)
    for place in range(count):
        file = io.BytesIO()
        Image.fromarray(np.full((4, 5, 3), 40 * place, np.uint8)).save(file, "PNG")
        images[place] = file.getvalue()
    return images


def robot_episode():
    steps = episode(4, terminal=True)
    steps["observation"] = {"image": make_images(4), "state": steps["observation"]}
    steps["language_instruction"] = np.array([b"lift the cup"] * 4, object)
    return steps


def sorted_epoch(source, items, key):
    """Returns the items of an epoch as one batch, in the order of a field that is different in each."""
    parts = list(batches(source, 4, items=items, epochs=1))
    joined = tree.map_structure(lambda *columns: np.concatenate(columns), *parts)
    order = np.argsort(key(joined))
    return tree.map_structure(lambda column: column[order], joined)


def adder_items(adder):
    """Returns the items that an adder makes of all episodes, each with a length, as one batch."""
    found = []
    for steps in EPISODES:
        items = adder(Episode(steps, 0))
        rows = [slice(start, start + length) for start, length in zip(items.starts, items.lengths, strict=True)]
        found += [tree.map_structure(lambda column, row=row: column[row], items.columns) for row in rows]
    return tree.map_structure(lambda *columns: np.stack(columns), *found)


def finish_reads():
    """Waits for the threads that read batches."""
    for thread in threading.enumerate():
        if thread.name == "rlds2reverb-read" and not thread.daemon:  # The program waits for those at its end, too.
            thread.join(20)


@pytest.mark.parametrize("n", [1, 3])
def test_transitions_match_those_of_the_adder(n):
    got = sorted_epoch(SOURCE, Transitions(n, gamma=0.9), lambda batch: batch["observation"][:, 0])
    expected = tree.map_structure(lambda column: column[:, 0], adder_items(NStep(n, 0.9)))
    order = np.argsort(expected["observation"][:, 0])
    assert len(got["reward"]) == NUM_TRANSITIONS
    assert_equal_nests(got, {name: expected[name][order] for name in got})


def test_windows_match_those_of_the_adder():
    got = sorted_epoch(SOURCE, Windows(3), lambda batch: batch["observation"][:, 0, 0])
    expected = adder_items(StepWindows(3, period=1, end="drop"))
    order = np.argsort(expected["observation"][:, 0, 0])
    assert_equal_nests(got, {name: expected[name][order] for name in got})


@pytest.mark.parametrize("is_stored", [False, True])
def test_action_chunks_are_padded_after_the_last_action(is_stored, tmp_path):
    options = {"store_dir": tmp_path} if is_stored else {}
    (batch,) = batches([robot_episode()], 3, items=CHUNKS, epochs=1, **options)
    place = np.argsort(batch["observation"]["state"][:, 0])
    assert batch["action"][place, :, 0].tolist() == [[10, 11], [11, 12], [12, 12]]
    assert batch["mask"]["action"][place].tolist() == [[True, True], [True, True], [True, False]]
    assert batch["observation"]["image"].shape == (3, 4, 5, 3)
    assert batch["observation"]["image"][place, 0, 0, 0].tolist() == [0, 40, 80]
    assert batch["language_instruction"].tolist() == [b"lift the cup"] * 3


@pytest.mark.parametrize("is_stored", [False, True])
def test_windows_of_offsets_match_a_naive_loop(is_stored, tmp_path):
    options = {"store_dir": tmp_path} if is_stored else {}
    items = StepOffsets({"observation": range(-1, 2), "action": range(-1, 2)})
    parts = list(batches(EPISODES, 4, items=items, epochs=1, **options))
    got = tree.map_structure(lambda *columns: np.concatenate(columns), *parts)
    expected = []
    for steps in EPISODES:
        num_actions = len(steps["action"]) - 1
        for step in range(num_actions):
            rows = [min(max(row, 0), num_actions) for row in range(step - 1, step + 2)]
            expected.append([steps["observation"][row][0] for row in rows])
            expected[-1] += [steps["action"][min(row, num_actions - 1)].ravel()[0] for row in rows]
            expected[-1] += [step > 0, True, True, step > 0, True, step + 1 < num_actions]
    first = lambda column: column.reshape(len(column), 3, -1)[..., 0]  # noqa: E731
    columns = [first(got["observation"]), first(got["action"]), got["mask"]["observation"], got["mask"]["action"]]
    np.testing.assert_allclose(sorted(np.column_stack(columns).tolist()), sorted(expected))


def test_sampled_batches_depend_on_seed_and_step_only():
    first = list(itertools.islice(batches(SOURCE, 5), 6))
    assert_equal_nests(list(itertools.islice(batches(SOURCE, 5, first_step=2, prefetch=0), 4)), first[2:])
    assert not np.array_equal(first[0]["reward"], next(iter(batches(SOURCE, 5, seed=1)))["reward"])
    shards = [iter(batches(SOURCE, 5, rank=rank, world_size=2, prefetch=rank)) for rank in range(2)]
    assert_equal_nests([next(shards[step % 2]) for step in range(6)], first)


@given(st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_shards_of_epochs_contain_each_item_once(batch_size, world_size, drop_last):
    if drop_last and batch_size * world_size > NUM_TRANSITIONS:
        return
    options = {"world_size": world_size, "epochs": 3, "drop_last": drop_last}
    shards = [batches(SOURCE, batch_size, rank=rank, **options) for rank in range(world_size)]
    read = [[batch["reward"] for batch in shard] for shard in shards]
    assert {len(shard) for shard in shards} == {len(shard) for shard in read}
    epochs = np.concatenate([part for step in zip(*read, strict=True) for part in step]).reshape(3, -1)
    distinct = {len(set(epoch)) for epoch in epochs}
    num_read = NUM_TRANSITIONS // (batch_size * world_size) * batch_size * world_size if drop_last else NUM_TRANSITIONS
    assert distinct == {num_read} and len({tuple(epoch) for epoch in epochs}) == 3
    if drop_last:
        assert {len(part) for shard in read for part in shard} == {batch_size}


def test_epochs_continue_at_any_step():
    every = list(batches(SOURCE, 4, epochs=2))
    for first_step in range(7):
        rest = batches(SOURCE, 4, epochs=2, first_step=first_step)
        assert len(rest) == 6 - first_step
        assert_equal_nests(list(rest), every[first_step:])


def test_datasets_are_stored_once_and_stores_are_read_in_place(tmp_path):
    expected = list(batches(SOURCE, 4, epochs=1))
    assert_equal_nests(list(batches(SOURCE, 4, epochs=1, store_dir=tmp_path)), expected)
    (path,) = tmp_path.iterdir()
    written = [file.stat().st_mtime_ns for file in path.glob("*.json")]
    assert_equal_nests(list(batches(SOURCE, 4, epochs=1, store_dir=tmp_path)), expected)
    for options in ({}, {"store_dir": tmp_path / "others"}):
        assert_equal_nests(list(batches(path, 4, epochs=1, **options)), expected)
    assert [*tmp_path.iterdir()] == [path]
    assert [file.stat().st_mtime_ns for file in path.glob("*.json")] == written


@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_reach_the_caller_and_dropped_iterators_stop(prefetch):
    calls, last_call = itertools.count(1), 3  # Threads call the function in any order.

    def decode(files, pixels):
        if next(calls) > last_call:
            raise OSError("the disk is gone")
        return np.zeros((len(files), *pixels.shape), pixels.dtype)

    found = iter(batches([robot_episode()], 2, items=Windows(1), decode=decode, prefetch=prefetch))
    with pytest.raises(OSError, match="the disk is gone"):
        for _ in range(4):
            next(found)
    finish_reads()
    num_calls, last_call = next(calls), math.inf
    found = iter(batches([robot_episode()], 2, items=Windows(1), decode=decode, prefetch=prefetch))
    next(found)
    del found
    finish_reads()
    assert next(calls) == num_calls + 1 + 2 + prefetch  # One of them is the first item, for its errors.


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be an integer >= 1"),
        ({"epoch": 1}, TypeError, "batches has no argument 'epoch'; did you mean 'epochs'"),
        ({"seed": -1}, ValueError, "seed must be an integer from 0"),
        ({"epochs": 0}, ValueError, "epochs must be an integer >= 1"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank must be an integer from 0 to 1, got 2"),
        ({"epochs": 1, "first_step": 7}, ValueError, "first_step must be an integer from 0 to 6"),
        ({"drop_last": True}, ValueError, "drop_last=True has no effect without epochs"),
        ({"table": "replay"}, ValueError, "table='replay' has no effect for datasets"),
        ({"items": ReturnToGo()}, TypeError, "items must be of a kind that can be read at random"),
        ({"items": Windows(2, ("acton",))}, ValueError, "no field 'acton'.*did you mean 'action'"),
        ({"items": Windows(8)}, SourceError, "there are no items; check whether all episodes are shorter"),
        ({"epochs": 1, "drop_last": True, "batch_size": 12}, SourceError, "11 items, too few for a batch of 12"),
    ],
)
def test_invalid_arguments_raise(options, error, message):
    with pytest.raises(error, match=message):
        batches(SOURCE, **{"batch_size": 2, **options})


def test_invalid_episodes_and_endless_lengths_raise():
    broken = episode(3, terminal=True)
    broken["reward"][1] = np.nan
    with pytest.raises(InvalidEpisodeError, match="holds NaN"):
        batches([broken], 2)
    with pytest.raises(TypeError, match="these batches do not end; pass epochs"):
        len(batches(SOURCE, 2))


@pytest.mark.parametrize(("module", "method"), [("torch", "as_torch"), ("jax", "as_jax")])
def test_missing_libraries_raise(module, method, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{method}\(\) requires .*; run .*pip install .* {module}"):
        getattr(batches(SOURCE, 2), method)()


def test_tensorflow_is_imported_neither_here_nor_in_workers(data, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('TensorFlow must not be imported')")
    with ReplayServer([TableConfig("replay")], NStep(1, 0.9).item_spec(SOURCE.step_spec)) as server:
        ingest(SOURCE, server, adder=NStep(1, 0.9))
        program = """
            import sys
            import numpy as np
            from rlds2reverb import batches

            address, folder, *paths = sys.argv[1:]
            first = [next(iter(batches(path, 8)))["action"] for path in paths]
            assert np.array_equal(next(iter(batches(paths[0], 8, store_dir=folder)))["action"], first[0])
            info, data = next(iter(batches(address, 8)))
            assert np.array_equal(data["reward"], data["observation"][:, 0] + 90), data
            assert info.weight.dtype == np.float32 and info.key.dtype == np.uint64
            try:
                batches(address, 8, seed=1)
            except ValueError as error:
                assert "seed=1 has no effect for servers" in str(error)
            assert "tensorflow" not in sys.modules
        """
        paths = (
            "d4rl/pendulum_mixed-v2.hdf5",
            "formats/lerobot/v3.0/c3",
            "formats/ogbench/cube-single-play-v0-val.npz",
        )
        command = [sys.executable, "-c", textwrap.dedent(program), server.address, tmp_path / "stores"]
        subprocess.run(
            [*command, *(data / path for path in paths)],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            check=True,
            timeout=100,
        )


def test_torch_tensors_share_memory_and_text_is_a_list():
    torch = pytest.importorskip("torch")
    found = batches([robot_episode()], 3, items=CHUNKS, epochs=1)
    (expected,), (batch,) = found, found.as_torch()
    assert batch["language_instruction"] == [b"lift the cup"] * 3
    assert isinstance(batch["observation"]["image"], torch.Tensor)
    np.testing.assert_array_equal(batch["action"].numpy(), expected["action"])


def test_jax_arrays_have_32_bits_and_text_is_a_list():
    jax = pytest.importorskip("jax")
    found = batches([robot_episode()], 3, items=CHUNKS, epochs=1)
    (expected,), (batch,) = found, found.as_jax()
    assert batch["language_instruction"] == [b"lift the cup"] * 3
    assert isinstance(batch["observation"]["image"], jax.Array)
    for converted, columns in zip(
        jax.tree.leaves(batch["observation"]), jax.tree.leaves(expected["observation"]), strict=True
    ):
        assert converted.dtype == jax.dtypes.canonicalize_dtype(columns.dtype)
        np.testing.assert_array_equal(converted, columns.astype(converted.dtype))
    np.testing.assert_array_equal(batch["mask"]["action"], expected["mask"]["action"])


def test_gloo_processes_read_each_item_once(tmp_path):
    pytest.importorskip("torch")
    program = """
        import sys
        import torch.distributed as dist
        from rlds2reverb import batches

        rank, file, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        read = [[]] * 2
        for batch in batches(path, 7, epochs=1, rank=dist.get_rank(), world_size=dist.get_world_size()).as_torch():
            dist.all_gather_object(parts := [None, None], batch["observation"][:, 0].tolist())
            read = [earlier + part for earlier, part in zip(read, parts)]
        if rank == 0:
            print(sorted(read[0] + read[1]), [len(part) for part in read])
        dist.destroy_process_group()
    """
    list(batches(SOURCE, 4, epochs=1, store_dir=tmp_path / "stores"))
    (store,) = (tmp_path / "stores").iterdir()
    command = [sys.executable, "-c", textwrap.dedent(program)]
    processes = [
        subprocess.Popen([*command, str(rank), tmp_path / "file", store], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    starts = sorted(float(value) for steps in EPISODES for value in steps["observation"][:-1, 0])
    assert outputs[0].strip() == f"{starts} [5, 6]" and outputs[1] == ""


# --- Normalisation


def make_robot_episodes():
    """Returns two episodes whose final row is a placeholder, an observation alone, or a last action."""
    random = np.random.default_rng(0)
    state, action = random.normal(5, 3, (30, 2)), random.normal(0, 2, (30, 3))
    state[:, 1] = 7  # constant
    log = {"observations": {"state": state}, "actions": action, "rewards": np.zeros(30), "terminated": False}
    known = {**log, "observations": {"state": np.concatenate([state, [[90, 7]]])}}
    return [log, {**log, "terminated": True}, known], state, action


@pytest.mark.parametrize("mode", ["mean_std", "quantiles"])
@pytest.mark.parametrize(
    "items", [Transitions(), StepOffsets({"observation.state": [-1, 0], "action": range(3)}), Windows(4)]
)
def test_fields_are_normalized_with_the_statistics_of_the_values_that_exist(items, mode, tmp_path):
    episodes, state, action = make_robot_episodes()
    options = {"items": items, "normalize": {"observation.state": mode, "action": mode}, "epochs": 1}
    data, plain = (batches(episodes, 500, store_dir=tmp_path, **one) for one in (options, {**options, "normalize": {}}))
    states = np.concatenate([state, state, state, [[90, 7]]])
    for path, values in (("observation.state", states), ("action", action)):
        found = data.statistics[path]
        np.testing.assert_allclose(found.mean, values.mean(0))
        np.testing.assert_allclose(found.std, values.std(0), atol=1e-12)
        np.testing.assert_allclose([found.min, found.max], [values.min(0), values.max(0)])
        # Each row three times, except for the final observation.
        rows = values if path != "action" else np.concatenate([values] * 3)
        np.testing.assert_allclose([found.q01, found.q99], np.quantile(rows, [0.01, 0.99], axis=0))
        low, high = (found.mean - found.std, found.mean + found.std) if mode == "mean_std" else (found.q01, found.q99)
        np.testing.assert_allclose(found.normalize(np.stack([low, high]))[:, 0], [-1, 1], rtol=1e-6)
        np.testing.assert_allclose(found.unnormalize(found.normalize(values)), values, rtol=1e-5, atol=1e-5)
    assert not data.statistics["observation.state"].normalize(state)[:, 1].any()
    batch, original = next(iter(data)), next(iter(plain))
    pairs = [(batch["action"], original["action"], "action")]
    names = [name for name in ("observation", "next_observation") if name in original]
    pairs += [(batch[name]["state"], original[name]["state"], "observation.state") for name in names]
    for got, raw, path in pairs:
        np.testing.assert_array_equal(got, data.statistics[path].normalize(raw))
        assert got.dtype == np.float32


@pytest.mark.parametrize(
    ("normalize", "message"),
    [
        ({"observation.sate": "mean_std"}, "no field 'observation.sate'; did you mean 'observation.state'"),
        ({"observation": "mean_std"}, "only arrays of floats can be normalised, got 'observation'"),
        ({"is_last": "mean_std"}, "only arrays of floats can be normalised, got 'is_last'"),
        ({"action": "standard"}, r"normalize\['action'\] must be"),
    ],
)
def test_fields_that_cannot_be_normalized_are_named(normalize, message):
    with pytest.raises(ValueError, match=message):
        batches(make_robot_episodes()[0], 8, normalize=normalize)


def make_weighted_episodes():
    """Returns 3 episodes of 4 transitions, whose actions are the numbers of their steps, with weights."""
    return [
        {
            "observations": np.zeros((5, 1), np.float32),
            "actions": np.float32(np.arange(4)[:, None] + 10 * number),
            "rewards": np.float32([number] * 4),
            "terminated": False,
            "weight": np.float32([0, 1, 3, 0]),
        }
        for number in range(3)
    ]


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (lambda steps: steps["reward"].sum(), {10 * number + step: number / 12 for number in (1, 2) for step in range(4)}),
        (lambda steps: steps["weight"], {10 * number + step: (1, 3)[step - 1] / 12 for number in range(3) for step in (1, 2)}),
    ],
)  # fmt: skip
def test_items_are_sampled_in_proportion_to_weights(sampler, expected):
    data = batches(make_weighted_episodes(), 6000, sampler=sampler, seed=3)
    first, second, *_ = (batch["action"][:, 0] for batch, _ in zip(data, range(2), strict=False))
    found, counts = np.unique(first, return_counts=True)
    total = sum(expected.values())
    assert found.tolist() == sorted(expected)
    np.testing.assert_allclose(counts / 6000, [expected[key] / total for key in found], atol=0.025)
    resumed = next(iter(batches(make_weighted_episodes(), 6000, sampler=sampler, seed=3, first_step=1)))
    np.testing.assert_array_equal(resumed["action"][:, 0], second)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda steps: -1, "sampler must return a number >= 0, or one for each of 5 steps, got .*-1.* for episode 0"),
        (lambda steps: [1, 2], "one for each of 5 steps"),
        (lambda steps: np.nan, "a number >= 0"),
        (lambda steps: 0, "must return a weight above 0"),
    ],
)
def test_invalid_weights_raise(sampler, message):
    with pytest.raises(ValueError, match=message):
        batches(make_weighted_episodes(), 2, sampler=sampler)
    with pytest.raises(ValueError, match="sampler.* with epochs, which contain each item once"):
        batches(make_weighted_episodes(), 2, sampler=sampler, epochs=1)
