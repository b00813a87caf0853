"""Compares random sequences of calls with a naive model made of dicts and loops."""

import math
import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import properties
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rlds2reverb.replay import BufferConfig, BufferMonitor, RateLimitedError, ReplayBuffer

#: The values of each option. Hypothesis generates only a seed, because it would mostly combine the first values.
OPTIONS = {
    "kind": ["advanced", "naive"],
    "max_size": [8, 5, 1],
    "alpha": [0.6, 1.0, 0.0],
    "beta": [0.4, 0.4, 0.0],
    "anneal_step": [0, 3],
    "weight_normalization": ["buffer", "batch"],
    "priority_eps": [0.0, 0.01],
    "max_use": [None, 3, 1],
    "max_staleness": [None, 4, 1],
    "sample_min_limit_ratio": [0, 1],
    "push_sample_rate_limit": [(0.0, math.inf), (0.0, math.inf), (0.2, math.inf), (0.0, 3.0), (0.2, 4.0)],
    "with_replacement": [True, False],
    "priority_decay": [None, 0.5],
}
CONFIGS = st.integers(0, 2**32 - 1).map(
    lambda seed: BufferConfig(
        **{name: random.Random(f"{seed} {name}").choice(values) for name, values in OPTIONS.items()}
    )
)
PRIORITIES = st.sampled_from([None, 0.5, 8.0, 0.0])
ITERS = st.sampled_from([None, 2, 1, 0, 5])
PUSHED = st.lists(st.tuples(PRIORITIES, ITERS), min_size=1, max_size=10)
RANGES = [None, None, None, None, slice(-2, None), slice(0, 3), slice(None, None, -2)]
SAMPLES = {
    "size": st.sampled_from([2, 1, 3, 4, 0, 8]),
    "learner_iter": st.sampled_from([None, 1, 0, 3, 6]),
    "as_columns": st.booleans(),
    "sample_range": st.sampled_from(RANGES),
}


class Comparison(RuleBasedStateMachine):
    """Makes the same calls on a buffer and on the model: a list of dicts, one per element, oldest first."""

    @initialize(config=CONFIGS, on_disk=st.booleans(), new=PUSHED)
    def begin(self, config, on_disk, new):
        self.config, self.folder = config, tempfile.TemporaryDirectory()
        self.mmap_dir = Path(self.folder.name) / "data" if on_disk else None
        self.buffer = self.create_buffer()
        self.elements, self.pushed, self.sampled, self.ignored = [], 0, 0, 0
        self.highest, self.beta, self.removed = 1.0, config.beta, Counter()
        self.saved = {}
        self.push(new, False)

    def create_buffer(self):
        buffer = ReplayBuffer("demo", self.config, mmap_dir=self.mmap_dir, seed=0)
        buffer.monitor = BufferMonitor("demo")
        return buffer

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def power(self, element):
        p = element["priority"]
        return 1.0 if self.config.kind == "naive" else (p**self.config.alpha if p > 0 else 0.0)

    def remove(self, reason, is_removed):
        self.removed[f"count/removed_{reason}"] += sum(map(is_removed, self.elements))
        self.elements = [e for e in self.elements if not is_removed(e)]

    @rule(new=PUSHED, as_columns=st.booleans())
    def push_more(self, new, as_columns):
        self.push(new, as_columns)

    def push(self, new, as_columns):
        max_rate = self.config.push_sample_rate_limit[1]
        refused = self.sampled and self.pushed + len(new) > max_rate * self.sampled
        values = np.arange(self.pushed, self.pushed + len(new))
        try:
            if as_columns:
                priorities = [math.nan if p is None else p for p, _ in new]
                if any(p is None for p, _ in new):
                    priorities, new = None, [(None, i) for _, i in new]
                iters = [-1 if i is None else i for _, i in new]
                columns = {"x": np.stack([values, values], 1)}
                numbers = self.buffer.extend_columns(columns, priorities=priorities, collect_iters=iters).tolist()
            else:
                rows = zip(values, new, strict=True)
                ids = self.buffer.extend(
                    [{"x": np.array([v, v]), "priority": p, "collect_iter": i} for v, (p, i) in rows]
                )
                numbers = [int(unique_id.removeprefix("demo_")) for unique_id in ids]
        except RateLimitedError:
            assert refused
            return
        assert not refused and numbers == values.tolist()
        for priority, iteration in new:
            self.highest = max(self.highest, priority or 0.0)
            priority = self.highest if priority is None else priority
            self.elements.append({"number": self.pushed, "priority": priority, "iter": iteration, "use": 0})
            self.pushed += 1
        oldest = self.pushed - self.config.max_size
        self.remove("full", lambda e: e["number"] < oldest)

    # Two equal rules make sampling twice as likely.
    @rule(**SAMPLES)
    def sample_first(self, **arguments):
        self.sample(**arguments)

    @rule(**SAMPLES)
    def sample_again(self, **arguments):
        self.sample(**arguments)

    def sample(self, size, learner_iter, as_columns, sample_range):
        config = self.config
        if max(size * config.sample_min_limit_ratio, 0 if config.with_replacement else size) > config.max_size:
            return
        if config.max_use is not None and size > config.max_use * config.max_size:
            return
        if learner_iter is not None and config.max_staleness is not None:
            self.remove("stale", lambda e: e["iter"] is not None and learner_iter - e["iter"] >= config.max_staleness)
        uses_left = {e["number"]: 0 if not self.power(e) else self.count_uses_left(e, size) for e in self.elements}
        refused = len(self.elements) < max(size * config.sample_min_limit_ratio, 1 if config.with_replacement else size)
        refused |= sum(map(bool, uses_left.values())) < (1 if config.with_replacement else size)
        if config.max_use is not None:
            refused |= sum(config.max_use - e["use"] for e in self.elements if self.power(e)) < size
        min_rate = config.push_sample_rate_limit[0]
        refused |= bool(min_rate) and self.pushed < min_rate * (self.sampled + size)
        allowed = [e["number"] for e in (self.elements if sample_range is None else self.elements[sample_range])]
        refused |= sum(uses_left[n] for n in allowed) < size
        call = self.buffer.sample_batch if as_columns else self.buffer.sample
        result = call(size, learner_iter, sample_range)
        if not size:
            assert result == [] or result
            return
        assert bool(result) != refused
        if as_columns and refused:
            assert result.reason.count("buffer 'demo'") == 1
        if not refused:
            items = as_dicts(result) if as_columns else result
            for item in [] if as_columns else items:
                item["number"] = int(item["replay_unique_id"].removeprefix("demo_"))
            self.check(items, allowed, uses_left, learner_iter)

    def count_uses_left(self, element, size):
        uses = size if self.config.max_use is None else self.config.max_use - element["use"]
        return uses if self.config.with_replacement else min(uses, 1)

    def check(self, items, allowed, uses_left, learner_iter):
        by_number = {e["number"]: e for e in self.elements}
        powers = [self.power(by_number[s["number"]]) for s in items]
        reference_powers = (
            [p for p in map(self.power, self.elements) if p > 0]
            if self.config.weight_normalization == "buffer"
            else powers
        )
        total, count = sum(self.power(by_number[number]) for number in allowed), len(self.elements)
        for sampled, power in zip(items, powers, strict=True):
            element = by_number[sampled["number"]]
            element["use"] += 1
            uses_left[sampled["number"]] -= 1
            is_known = learner_iter is not None and element["iter"] is not None
            assert sampled["number"] in allowed and uses_left[sampled["number"]] >= 0
            assert sampled["x"].tolist() == [sampled["number"]] * 2
            assert (sampled["priority"], sampled["use"]) == (element["priority"], element["use"])
            assert sampled["staleness"] == (max(0, learner_iter - element["iter"]) if is_known else -1)
            assert sampled.get("collect_iter") == element["iter"]
            weight = (power / min(reference_powers)) ** -self.beta
            if "key" in sampled:
                assert math.isclose(sampled["weight"], weight, rel_tol=1e-6)
                assert math.isclose(sampled["probability"], power / total) and sampled["table_size"] == count
            else:
                assert math.isclose(sampled["IS"], weight, rel_tol=1e-12)
                assert sampled["replay_buffer_idx"] == sampled["number"] % self.config.max_size
        self.sampled += len(items)
        if self.config.anneal_step:
            self.beta = min(1.0, self.beta + (1 - self.config.beta) / self.config.anneal_step)
        if self.config.max_use is not None:
            self.remove("used", lambda e: e["use"] >= self.config.max_use)

    @rule(
        pairs=st.lists(st.tuples(st.integers(0, 99), st.sampled_from([0.25, 3.0, 0.0])), min_size=1, max_size=8),
        as_numbers=st.booleans(),
    )
    def update(self, pairs, as_numbers):
        numbers = [max(0, self.pushed + 2 - number) for number, _ in pairs]
        priorities = [priority for _, priority in pairs]
        ids = np.array(numbers) if as_numbers else [f"demo_{n}" for n in numbers]
        count = self.buffer.update({"replay_unique_id": ids, "priority": priorities})
        by_number = {e["number"]: e for e in self.elements}
        updates = [(by_number[n], p) for n, p in zip(numbers, priorities, strict=True) if n in by_number]
        assert count == len(updates)
        self.ignored += len(numbers) - len(updates)
        for element, priority in updates:
            element["priority"] = priority + self.config.priority_eps
        if updates:
            lowered = self.highest * (self.config.priority_decay or 1.0)
            self.highest = max(lowered, max(p for _, p in updates), self.config.min_positive_priority)

    @rule()
    def clear(self):
        self.buffer.clear()
        self.remove("cleared", lambda e: True)
        self.highest = 1.0

    def state(self):
        return [dict(e) for e in self.elements], self.pushed, self.sampled, self.ignored, self.highest, self.beta

    @rule(form=st.sampled_from(["dict", "files"]))
    def save(self, form):
        path = Path(self.folder.name) / "saved"
        self.saved[form] = self.buffer.state_dict() if form == "dict" else self.buffer.save_data(path), self.state()

    @rule(form=st.sampled_from(["dict", "files"]), into_new=st.booleans())
    def restore(self, form, into_new):
        if form not in self.saved:
            return
        state, (elements, *numbers) = self.saved[form]
        if into_new:
            self.compare_removals()
            self.buffer, self.removed = self.create_buffer(), Counter()
        if form == "dict":
            self.buffer.load_state_dict(state)
        else:
            self.buffer.load_data(state.parent)
        self.elements = [dict(e) for e in elements]
        self.pushed, self.sampled, self.ignored, self.highest, self.beta = numbers

    def compare_removals(self):
        values = self.buffer.monitor.values()
        assert {key: value for key, value in values.items() if "removed" in key} == dict(+self.removed)

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "buffer"):
            return
        buffer = self.buffer
        assert (len(buffer), buffer.push_count) == (len(self.elements), self.pushed)
        assert (buffer.sample_count, buffer.ignored_count) == (self.sampled, self.ignored)
        assert math.isclose(buffer.highest_priority, self.highest) and math.isclose(buffer.beta, self.beta)
        assert math.isclose(
            buffer.contents.elements.sum_tree.root, sum(map(self.power, self.elements)), rel_tol=1e-12, abs_tol=0
        )
        self.compare_removals()


def as_dicts(batch):
    info = {name: values.tolist() for name, values in batch.info._asdict().items() if not isinstance(values, tuple)}
    items = [dict(zip(info, values, strict=True)) for values in zip(*info.values(), strict=True)]
    for item, x in zip(items, batch.data["x"], strict=True):
        item |= {"x": x, "number": item["key"], "use": item["times_sampled"]}
        if item["collect_iter"] == -1:
            del item["collect_iter"]
    return items


TestAnySequence = Comparison.TestCase
TestAnySequence.settings = settings(properties.examples(100), stateful_step_count=40)


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 600))])
def test_random_call_sequences_match_the_model(seed):
    """Longer sequences than Hypothesis generates, with all options mixed."""
    rng = random.Random(seed)
    run = Comparison()

    def make_elements():
        return [(rng.choice([None, 0.5, 8.0, 0.0]), rng.choice([None, 0, 1, 2, 5])) for _ in range(rng.randint(1, 10))]

    def flip():
        return rng.random() < 0.5

    calls = [
        *[lambda: run.push_more(make_elements(), flip())] * 6,
        *[lambda: run.sample(rng.randint(0, 4), rng.choice([None, 0, 1, 3]), flip(), rng.choice(RANGES))] * 12,
        *[lambda: run.update([(rng.randint(0, 12), rng.choice([0.25, 3.0, 0.0])) for _ in range(4)], flip())] * 6,
        run.clear,
        lambda: run.save(rng.choice(["dict", "files"])),
        lambda: run.restore(rng.choice(["dict", "files"]), flip()),
    ]
    run.begin(BufferConfig(**{name: rng.choice(values) for name, values in OPTIONS.items()}), flip(), make_elements())
    try:
        for _ in range(80):
            rng.choice(calls)()
            run.counts_agree()
    finally:
        run.teardown()
