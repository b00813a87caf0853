"""Batches with goals from sampled episodes, without a server."""

from types import SimpleNamespace

import numpy as np
from tf_agents.trajectories import Trajectory

from rlds2reverb.training.sampled_episodes import SampledEpisodes

#: Steps of the episodes 0 to 2.
LENGTHS = (3, 2, 4)


class Samples:
    """The samples of a plan: batches of padded episodes, in which the step t of episode n is 10 n + t."""

    def __init__(self, *batches):
        self.batches, self.is_closed = iter(batches), False

    def __next__(self):
        numbers = next(self.batches)
        lengths = np.array([LENGTHS[number % 10] for number in numbers])
        times = np.tile(np.arange(lengths.max()), (len(numbers), 1))
        steps = (10.0 * (np.array(numbers) % 10)[:, None] + times).astype(np.float32)
        is_last = times == lengths[:, None] - 1
        step_type = np.where(is_last, 2, np.minimum(times, 1)).astype(np.int32)
        data = Trajectory(step_type, steps, -steps, (), step_type, steps / 2, np.ones_like(steps))
        # Numbers from 10 are episodes of a second server with the same keys.
        info = SimpleNamespace(
            server=np.array(numbers) // 10, key=np.array(numbers) % 10, mask=times < lengths[:, None]
        )
        return SimpleNamespace(data=data, info=info)

    def close(self):
        self.is_closed = True


def read_episodes(*batches):
    """Returns the columns and the numbers of steps that a feed makes items of, for each batch of samples."""
    samples, read = Samples(*batches), []

    def make_items(columns):
        read.append((columns.take(np.arange(int(columns.num_steps.sum()))), columns.num_steps.tolist()))
        feed = SimpleNamespace(
            data_spec=None, replace_steps=make_items, read=lambda step, count: ({"x": np.array([step])}, ())
        )
        return feed

    feed = SampledEpisodes(SimpleNamespace(open=lambda: samples), make_items)
    batch, _ = feed.read(5, len(batches) - 1)
    assert batch["x"].tolist() == [5 + step for step in range(len(batches) - 1)]
    feed.close()
    feed.close()
    assert samples.is_closed
    return read


def test_each_sampled_episode_is_used_once_without_its_padding():
    (first, num_steps), (second, others) = read_episodes([1, 2, 1, 0], [0, 10, 0])
    assert num_steps == [2, 4, 3] and others == [3, 3]
    assert first["observation"].tolist() == [10, 11, 20, 21, 22, 23, 0, 1, 2]
    assert (first["action"] == -first["observation"]).all() and (first["reward"] == first["observation"] / 2).all()
    assert first["is_first"].tolist() == [1, 0, 1, 0, 0, 0, 1, 0, 0]
    assert first["is_last"].tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 1]
    assert not first["is_terminal"].any() and (first["discount"] == 1).all()
    assert second["observation"].tolist() == [0, 1, 2, 0, 1, 2]
