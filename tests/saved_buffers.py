"""A small buffer in which something of each sort has happened, and what to compare of it afterwards."""

import numpy as np

from rlds2reverb.replay import BufferConfig

CONFIG = BufferConfig(max_size=6, beta=0.4, anneal_step=10, max_staleness=100, sample_min_limit_ratio=0)


def item(number, **more):
    return {"obs": np.full(3, number, np.float32), "inner": {"action": np.int64(number)}, **more}


def content(buffer):
    """Priority, use, iteration and fields of each element that is there, by id; and what the buffer counts."""
    state = buffer.state_dict()
    known, header = state["arrays"], state["header"]
    elements = {}
    for slot in np.flatnonzero(known["alive"]):
        number = header["push_count"] - 1 - (header["push_count"] - 1 - slot) % header["max_size"]
        fields = known["column_1"][slot].tolist(), int(known["column_0"][slot])
        elements[f"demo_{number}"] = (
            *(float(known[name][slot]) for name in ("priorities", "uses", "collect_iters")),
            *fields,
        )
    counts = ("push_count", "sample_count", "beta", "highest_priority")
    return elements, buffer.count(), [header[name] for name in counts]


def filled(buffer):
    """A buffer in which something of each sort has happened."""
    ids = buffer.extend([item(n, collect_iter=n, priority=n + 1.0) for n in range(4)])
    buffer.extend([item(n) for n in range(4, 8)])
    buffer.update({"replay_unique_id": ids[3:], "priority": [9.0]})
    buffer.sample(3, 50)
    return buffer
