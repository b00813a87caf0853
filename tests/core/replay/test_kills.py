"""Buffers in processes that are killed, at chosen moments and at any."""

import numpy as np
import pytest
from faults import around, hear, process
from saved_buffers import CONFIG, content, filled, item

from rlds2reverb.replay import AdvancedReplayBuffer, checkpoints


def pusher(channel, root, held_at):
    """Pushes 8 elements and saves, pushes one more and saves again; says so when it is held, and waits."""
    armed = []

    def hold():
        if armed:
            channel.send("held")
            channel.recv()

    places = {
        "begin": (checkpoints, "_write"),
        "arrays": (checkpoints._ArrayFile, "described"),
        "named": (checkpoints.sealed_json, "sync"),
    }
    if held_at in places:
        around(*places[held_at], before=hold)
    if held_at == "end":
        around(checkpoints.shutil, "rmtree", after=hold)
    buffer = filled(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root))
    buffer.checkpoint()
    armed.append(True)
    buffer.append(item(8, priority=20.0))
    buffer.checkpoint()
    channel.send("done")
    channel.recv()


@pytest.mark.parametrize(
    ("held_at", "num_pushed"),
    [
        ("begin", 8),
        pytest.param("arrays", 8, marks=pytest.mark.slow),
        pytest.param("named", 8, marks=pytest.mark.slow),
        ("end", 8),
        ("never", 9),
    ],
)
def test_a_killed_buffer_goes_on_from_its_last_complete_checkpoint(tmp_path, held_at, num_pushed):
    root = tmp_path / "root"
    with process(pusher, root, held_at) as (program, channel):
        assert hear(channel) == ("done" if held_at == "never" else "held")
        program.kill()
        program.join()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as again:
        elements, count, (pushed, *_, highest) = content(again)
        assert (count, pushed, highest) == (6, num_pushed, 20.0 if num_pushed == 9 else 9.0)
        assert all(values[-1] == int(key.removeprefix("demo_")) for key, values in elements.items())
        assert set(elements) == {f"demo_{n}" for n in range(num_pushed - 6, num_pushed)}
        assert again.append(item(num_pushed)) == f"demo_{num_pushed}"
        again.checkpoint()


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
        elements, _, _ = content(again)
        assert set(elements) == {f"demo_{n}" for n in range(again.push_count - 6, again.push_count)}
        for key, (priority, *_, number) in elements.items():
            assert key == f"demo_{number}" and (
                priority == number + 1 + CONFIG.eps or priority <= again.highest_priority
            )
