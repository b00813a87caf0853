"""Tests of buffers whose process is killed, at chosen or random moments."""

import internals
import numpy as np
import pytest
from faults import process, receive, wrap_calls
from saved_buffers import CONFIG, fill, get_content, item

from rlds2reverb.replay import AdvancedReplayBuffer, buffer_checkpoints as checkpoints
from rlds2reverb.system import sealed_files


def push_and_hold(channel, root, held_at):
    """Pushes 8 elements and saves, then pushes one more and saves again; stops at `held_at`, reports it and waits."""
    armed = []

    def hold():
        if armed:
            channel.send("held")
            channel.recv()

    calls = {
        "begin": (checkpoints, internals.WRITE_STATES),
        "arrays": (checkpoints, internals.AS_BYTES),
        "manifest": (sealed_files, "save_json"),
        "synced": (sealed_files, "sync"),
    }
    if held_at in calls:
        wrap_calls(*calls[held_at], before=hold)
    if held_at == "end":
        wrap_calls(sealed_files.SealedFolders, "delete", after=hold)
    buffer = fill(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root))
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
        pytest.param("manifest", 8, marks=pytest.mark.slow),
        pytest.param("synced", 8, marks=pytest.mark.slow),
        ("end", 9),
        pytest.param("never", 9, marks=pytest.mark.slow),
    ],
)
@pytest.mark.drill("replay")
def test_killed_buffer_resumes_from_its_last_complete_checkpoint(tmp_path, held_at, num_pushed):
    root = tmp_path / "root"
    with process(push_and_hold, root, held_at) as (program, channel):
        assert receive(channel) == ("done" if held_at == "never" else "held")
        program.kill()
        program.join()
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as again:
        elements, count, (pushed, *_, highest) = get_content(again)
        assert (count, pushed, highest) == (6, num_pushed, 20.0 if num_pushed == 9 else 9.0)
        assert all(values[-1] == int(key.removeprefix("demo_")) for key, values in elements.items())
        assert set(elements) == {f"demo_{n}" for n in range(num_pushed - 6, num_pushed)}
        assert again.append(item(num_pushed)) == f"demo_{num_pushed}"
        again.checkpoint()


def keep_saving(channel, root):
    """Pushes, samples, updates and saves in an endless loop; reports the push count after each checkpoint."""
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
@pytest.mark.drill("replay")
def test_repeated_kills_lose_no_checkpoint(tmp_path, rounds):
    rng = np.random.default_rng(rounds)
    push_count = 0
    for _ in range(rounds):
        with process(keep_saving, tmp_path / "root") as (program, channel):
            for _ in range(int(rng.integers(1, 8))):
                push_count = receive(channel)
            channel.poll(rng.uniform(0, 0.03))  # Kill it at a random moment of the next round.
            program.kill()
            program.join()
            try:
                while channel.poll():
                    push_count = channel.recv()
            except EOFError:
                pass
    with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=tmp_path / "root") as again:
        assert again.push_count in (push_count, push_count + 5) and len(again) == min(6, again.push_count)
        elements, _, _ = get_content(again)
        assert set(elements) == {f"demo_{n}" for n in range(again.push_count - 6, again.push_count)}
        for key, (priority, *_, number) in elements.items():
            is_updated = priority == number + 1 + CONFIG.priority_eps
            assert key == f"demo_{number}" and (is_updated or priority <= again.highest_priority)
