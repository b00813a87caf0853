"""Tests of monitors of replay buffers, with a clock that the tests set."""

import math
import threading

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.replay.monitors import REASONS, BufferMonitor, MonitorConfig, RateWindow, table


class Clock:
    """A clock that stands still until `now` is set."""

    def __init__(self, now=100.0):
        self.now = now

    def __call__(self):
        return self.now


def make_monitor(clock=None, **config):
    return BufferMonitor("agent_1", MonitorConfig(**config), clock=clock or Clock())


def add_sample(monitor, use, staleness, priorities):
    use, staleness = np.array(use, np.int64), np.array(staleness, np.int64)
    monitor.record("sampled", len(use), use=use, staleness=staleness, priority=np.array(priorities, float))


def record(monitor, event, priorities):
    monitor.record(event, len(priorities), priority=priorities)


def test_values_are_absent_without_data_and_never_nan():
    clock = Clock()
    monitor = make_monitor(clock)
    assert monitor.values() == {} and monitor.histogram() is None and monitor.table().split() == ["agent_1"]
    clock.now += 10
    assert monitor.values() == {"throughput/push": 0.0, "throughput/sample": 0.0}
    record(monitor, "pushed", np.zeros(0))
    record(monitor, "updated", np.zeros(0))
    add_sample(monitor, [], [], [])
    assert monitor.values() == {"throughput/push": 0.0, "throughput/sample": 0.0}
    add_sample(monitor, [1], [-1], [2.0])
    assert not any(key.startswith("sampled/staleness") for key in monitor.values())
    assert all(math.isfinite(value) for value in monitor.values().values())


def test_rates_match_hand_computed_values_in_a_moving_window():
    # The window has 4 parts of 2 s. Pushes: 10 at 0 s, 20 at 3 s, 30 at 7 s.
    clock = Clock()
    monitor = make_monitor(clock, window_secs=8.0, num_parts=4)
    rates = {}
    pushes = {0.0: 10, 3.0: 20, 7.0: 30}
    for second in (0.0, 1.5, 3.0, 5.0, 7.0, 8.0, 10.0, 15.9, 16.0, 1000.0):
        clock.now = 100.0 + second
        record(monitor, "pushed", np.ones(pushes.get(second, 0)))
        rates[second] = monitor.values().get("throughput/push")
    assert rates == {
        0.0: None,
        1.5: None,  # There is no rate before the first part is complete.
        3.0: 30 / 3,
        5.0: 30 / 5,
        7.0: 60 / 7,
        8.0: 50 / 6,  # Without the part from 0 to 2 s: 20 + 30 in the 6 s from 2 to 8 s.
        10.0: 30 / 6,
        15.9: 0.0,
        16.0: 0.0,
        1000.0: 0.0,
    }


def test_push_and_sample_rates_are_separate():
    clock = Clock()
    monitor = make_monitor(clock, window_secs=60.0)
    record(monitor, "pushed", np.ones(30))
    add_sample(monitor, [1] * 12, [0] * 12, [1.0] * 12)
    clock.now += 6
    assert monitor.values()["throughput/push"] == 5.0 and monitor.values()["throughput/sample"] == 2.0


def test_rate_window_keeps_counts_when_the_clock_goes_back():
    window = RateWindow(MonitorConfig(window_secs=10.0, num_parts=10), 0.0)
    window.add(5, 4.0)
    window.add(5, 3.0)
    assert window.per_second(5.0) == 2.0


def test_items_are_counted_by_event():
    monitor = make_monitor()
    record(monitor, "pushed", np.ones(5))
    record(monitor, "pushed", np.ones(1))
    record(monitor, "updated", np.ones(2))
    add_sample(monitor, [1, 2], [0, 0], [1.0, 1.0])
    for number, reason in enumerate(REASONS):
        monitor.record(f"removed_{reason}", number)
    counts = {key: value for key, value in monitor.values().items() if key.startswith("count/")}
    assert counts == {
        "count/pushed": 6,
        "count/sampled": 2,
        "count/updated": 2,
        "count/removed_stale": 1,
        "count/removed_used": 2,
        "count/removed_cleared": 3,
    }


def test_sampled_statistics_match_hand_computed_values():
    monitor = make_monitor()
    add_sample(monitor, [1, 3], [4, -1], [0.5, 2.0])
    add_sample(monitor, [2, 4], [11, 0], [1.0, 4.5])
    values = {key: value for key, value in monitor.values().items() if key.startswith("sampled/")}
    assert values == {
        "sampled/use_mean": 2.5,
        "sampled/use_max": 4,
        "sampled/staleness_mean": 5,
        "sampled/staleness_max": 11,
        "sampled/priority_mean": 2.0,
        "sampled/priority_max": 4.5,
        "sampled/priority_min": 0.5,
    }


def test_priority_statistics_cover_recent_pushes_and_updates():
    monitor = make_monitor(num_values=4, num_buckets=3)
    record(monitor, "pushed", np.array([100.0, 1.0]))
    record(monitor, "updated", np.array([2.0]))
    record(monitor, "pushed", np.array([3.0, 4.0]))
    values = monitor.values()
    assert [values[f"priority/{name}"] for name in ("mean", "max", "min")] == [2.5, 4.0, 1.0]
    counts, edges = monitor.histogram()
    assert counts.tolist() == [1, 1, 2] and edges.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("sizes", [[1] * 25, [3, 7, 5, 10], [25], [0, 24, 1], [9, 16]])
def test_recent_values_do_not_depend_on_the_size_of_updates(sizes):
    monitor = make_monitor(num_values=10)
    for part in np.split(np.arange(25.0), np.cumsum(sizes)[:-1]):
        record(monitor, "updated", part)
    values = monitor.values()
    assert (values["priority/min"], values["priority/mean"], values["priority/max"]) == (15, 19.5, 24)
    assert monitor.histogram()[0].sum() == 10


def test_summaries_can_be_read_back(tmp_path):
    clock = Clock()
    monitor = make_monitor(clock, num_buckets=2)
    record(monitor, "pushed", np.array([1.0, 2.0, 2.0]))
    clock.now += 3
    writer = tf.summary.create_file_writer(str(tmp_path))
    monitor.write_summaries(writer, 7)
    make_monitor().write_summaries(writer, 8)
    writer.close()
    (path,) = tmp_path.iterdir()
    values = {}
    for serialized in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(serialized.numpy())
        for value in event.summary.value:
            values[event.step, value.tag] = tf.make_ndarray(value.tensor)
    scalars = {tag: float(value) for (step, tag), value in values.items() if not value.ndim}
    assert scalars == {f"agent_1/{key}": np.float32(value) for key, value in monitor.values().items()}
    assert values[7, "agent_1/priority/histogram"].tolist() == [[1.0, 1.5, 1.0], [1.5, 2.0, 2.0]]
    assert {step for step, _ in values} == {7}


def test_table_of_two_buffers_matches_expected_text():
    clock = Clock()
    agent, demo = make_monitor(clock), BufferMonitor("demo", clock=clock)
    record(agent, "pushed", np.array([0.5, 1.0]))
    demo.record("removed_full", 12_345)
    clock.now += 3
    assert table([agent, demo]).splitlines() == [
        "                    agent_1    demo",
        "throughput/push      0.6667       0",
        "throughput/sample         0       0",
        "count/pushed              2       -",
        "priority/mean          0.75       -",
        "priority/max              1       -",
        "priority/min            0.5       -",
        "count/removed_full        -  12,345",
    ]
    assert agent.table().splitlines()[3] == "count/pushed             2"


def test_events_of_several_threads_are_all_counted():
    monitor = make_monitor(num_values=10)

    def work():
        for _ in range(500):
            record(monitor, "pushed", np.ones(2))
            add_sample(monitor, [1], [0], [1.0])
            monitor.values()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert monitor.values()["count/pushed"] == 4000 and monitor.values()["count/sampled"] == 2000


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("window_secs", 0.0, "window_secs must be a finite number above 0, got 0.0"),
        ("window_secs", math.inf, "window_secs must be a finite number above 0, got inf"),
        ("window_secs", math.nan, "window_secs must be a finite number above 0, got nan"),
        ("num_parts", 1, "num_parts must be an integer >= 2, got 1"),
        ("num_values", 0, "num_values must be an integer >= 1, got 0"),
        ("num_values", 2.5, "num_values must be an integer >= 1, got 2.5"),
        ("num_buckets", True, "num_buckets must be an integer >= 1, got True"),
    ],
)
def test_invalid_monitor_configs_raise(field, value, message):
    with pytest.raises(ValueError, match=message):
        MonitorConfig(**{field: value})
