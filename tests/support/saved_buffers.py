"""A small buffer after every kind of operation, and its content for comparisons."""

import numpy as np

from rlds2reverb.replay import BufferConfig

CONFIG = BufferConfig(max_size=6, beta=0.4, anneal_step=10, max_staleness=100, sample_min_limit_ratio=0)


def item(number, **extra):
    return {"obs": np.full(3, number, np.float32), "inner": {"action": np.int64(number)}, **extra}


def get_content(buffer):
    """Returns priority, uses, iteration and fields of each element by id; the number of elements; and the counts."""
    state = buffer.state_dict()
    arrays, header = state["arrays"], state["header"]
    elements = {}
    for slot in np.flatnonzero(arrays["alive"]):
        number = header["push_count"] - 1 - (header["push_count"] - 1 - slot) % header["max_size"]
        fields = arrays["column_1"][slot].tolist(), int(arrays["column_0"][slot])
        values = [float(arrays[name][slot]) for name in ("priorities", "uses", "collect_iters")]
        elements[f"demo_{number}"] = (*values, *fields)
    counts = ("push_count", "sample_count", "beta", "highest_priority")
    return elements, len(buffer), [header[name] for name in counts]


def fill(buffer):
    """Pushes, updates and samples; returns the buffer."""
    ids = buffer.extend([item(n, collect_iter=n, priority=n + 1.0) for n in range(4)])
    buffer.extend([item(n) for n in range(4, 8)])
    buffer.update({"replay_unique_id": ids[3:], "priority": [9.0]})
    buffer.sample(3, 50)
    return buffer
