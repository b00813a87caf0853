"""Buffers in processes that are killed, at chosen moments and at any."""

import numpy as np
import pytest
from faults import around, damage_file, hear, process
from saved_buffers import CONFIG, content, filled, item

from rlds2reverb._server.checkpoint_root import CheckpointRoot
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.errors import CheckpointError
from rlds2reverb.replay import AdvancedReplayBuffer, snapshots


def pusher(channel, root, held_at):
    """Pushes 8 elements and saves, pushes one more and saves again; says so when it is held, and waits."""
    armed = []

    def hold():
        if armed:
            channel.send("held")
            channel.recv()

    if held_at == "reverb":
        around(ReplayServer, "checkpoint", before=hold)
    elif held_at == "manifest":
        around(CheckpointRoot, "write_manifest", before=hold)
    elif held_at == "naming":
        around(snapshots.Snapshots, "_name", before=hold)
    buffer = filled(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root))
    buffer.checkpoint()
    armed.append(True)
    buffer.append(item(8, priority=20.0))
    buffer.checkpoint()
    channel.send("done")
    channel.recv()


@pytest.mark.parametrize(("held_at", "num_pushed"), [("reverb", 8), ("manifest", 9), ("naming", 9), ("never", 9)])
def test_a_killed_buffer_goes_on_from_its_last_complete_checkpoint(tmp_path, held_at, num_pushed):
    root = tmp_path / "root"
    with process(pusher, root, held_at) as (program, channel):
        assert hear(channel) == ("done" if held_at == "never" else "held")
        program.kill()
        program.join()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as again:
        elements, count, pushed, highest = content(again)
        assert (count, pushed, highest) == (6, num_pushed, 20.0 if num_pushed == 9 else 9.0)
        assert all(values[2] == values[3] == int(key.removeprefix("demo_")) for key, values in elements.items())
        assert set(elements) <= {f"demo_{n}" for n in range(num_pushed - 6, num_pushed)} and len(elements) == 6
        assert again.append(item(num_pushed)) == f"demo_{num_pushed}"
        again.checkpoint()


def test_a_buffer_does_not_begin_with_an_earlier_checkpoint_than_its_state(tmp_path):
    with filled(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "root")) as buffer:
        buffer.checkpoint()
        buffer.append(item(8))
        buffer.checkpoint()
    (checkpoint,) = (tmp_path / "root/table/checkpoints").iterdir()
    damage_file(checkpoint / "items.tfrecord", "flipped")
    with pytest.raises(CheckpointError, match="items.tfrecord is damaged"):
        AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "root")


def busy(channel, root):
    """Pushes, samples, updates and saves for ever, and says how many were pushed after each checkpoint."""
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as buffer:
        while True:
            number = buffer.push_count
            buffer.extend([item(n, collect_iter=n) for n in range(number, number + 5)])
            sampled = buffer.sample(4, number)
            priorities = [float(s["inner"]["action"] + 1) for s in sampled]
            buffer.update({"replay_unique_id": [s["replay_unique_id"] for s in sampled], "priority": priorities})
            buffer.checkpoint()
            channel.send(buffer.push_count)


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_buffer_that_is_killed_again_and_again_loses_no_checkpoint(tmp_path, rounds):
    rng = np.random.default_rng(rounds)
    told = 0
    for _ in range(rounds):
        with process(busy, tmp_path / "root") as (program, channel):
            for _ in range(int(rng.integers(1, 8))):
                told = hear(channel)
            channel.poll(rng.uniform(0, 0.03))  # somewhere in the next turn
            program.kill()
            program.join()
            try:
                while channel.poll():
                    told = channel.recv()
            except EOFError:
                pass
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "root") as again:
        assert again.push_count in (told, told + 5) and again.count() == min(6, again.push_count)
        newest = range(again.push_count - 6, again.push_count)
        sampled = [s for _ in range(60) for s in again.sample(6, 0)]
        seen = {s["replay_unique_id"]: (int(s["inner"]["action"]), s["priority"]) for s in sampled}
        assert all(key == f"demo_{number}" and number in newest for key, (number, _) in seen.items())
        assert all(p == number + 1 + CONFIG.eps or p <= again.highest_priority for number, p in seen.values())
