"""In-process replay buffers whose process ends at each operation of a checkpoint."""

import pytest
from crashes import EXIT_CODE, CrashAt
from faults import process, receive
from saved_buffers import CONFIG, fill, get_content, item

from rlds2reverb.replay import AdvancedReplayBuffer

pytestmark = pytest.mark.slow


def save_until_crash(channel, root, crash_at):
    """Writes a second checkpoint, and ends at the N-th operation that changes a file."""
    buffer = fill(AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root))
    buffer.checkpoint()
    channel.send("saved")
    buffer.append(item(8, priority=20.0))
    CrashAt(crash_at)
    buffer.checkpoint()


@pytest.mark.drill("replay")
def test_crash_at_each_operation_of_a_checkpoint_keeps_a_complete_one(tmp_path):
    num_pushed = []
    for crash_at in range(1, 200):
        root = tmp_path / str(crash_at)
        with process(save_until_crash, root, crash_at) as (running, channel):
            assert receive(channel) == "saved"
            running.join(60)
            has_crashed = running.exitcode == EXIT_CODE
        with AdvancedReplayBuffer("demo", CONFIG, checkpoint_root=root) as buffer:
            elements, _, (pushed, *_) = get_content(buffer)
            assert set(elements) == {f"demo_{n}" for n in range(pushed - 6, pushed)}, f"operation {crash_at}"
            num_pushed.append(pushed)
            buffer.append(item(pushed))
            buffer.checkpoint()
        if not has_crashed:
            break
    assert set(num_pushed) == {8, 9} and num_pushed == sorted(num_pushed)
    assert len(num_pushed) > 5
