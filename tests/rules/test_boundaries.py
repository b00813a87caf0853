"""What crosses a boundary has the shape and dtype of its spec: environments, batches, processes and threads."""

import functools

import numpy as np
import pytest

from rlds2reverb.envs import BatchedEnvironment, GymnasiumEnvironment, ParallelEnvironment, ThreadEnvironment, Wrapper
from rlds2reverb.envs.batched_environment import stack
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import ArraySpec

gymnasium = pytest.importorskip("gymnasium")


class Pixels(gymnasium.Env):
    """An environment with a small image and a vector, whose info can lack a field."""

    observation_space = gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (2, 2, 1), np.uint8), state=gymnasium.spaces.Box(-1, 1, (3,))
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, lacks_info=False):
        self._lacks_info = lacks_info
        self._num_steps = 0

    def _observe(self):
        return {"image": np.full((2, 2, 1), 200, np.uint8), "state": np.full(3, 0.5, np.float32)}

    def reset(self, seed=None, options=None):
        self._num_steps = 0
        return self._observe(), {}

    def step(self, action):
        self._num_steps += 1
        info = {} if self._lacks_info and self._num_steps == 2 else {"height": 1.5}
        return self._observe(), 1.0, False, False, info


class Changes(Wrapper):
    """A wrapper that changes a part of the time steps, from a step on, and forgets the specs."""

    def __init__(self, env, change, first):
        super().__init__(env)
        self._change, self._first, self._count = change, first, -1

    def _transform_time_step(self, time_step):
        self._count += 1
        return self._change(time_step) if self._count >= self._first else time_step


def replace(name, function, time_step):
    return time_step._replace(observation={**time_step.observation, name: function(time_step.observation[name])})


CHANGES = {
    "shape": (
        functools.partial(replace, "state", lambda x: x[:1]),
        r"\['state'\] must be float32 \[3\].*float32 \[1\]",
    ),
    "dtype": (
        functools.partial(replace, "image", lambda x: x / 255),
        r"\['image'\] must be uint8 \[2, 2, 1\].*float64 \[2, 2, 1\]",
    ),
    "width": (functools.partial(replace, "state", np.float64), r"\['state'\] must be float32 \[3\].*float64 \[3\]"),
    "field": (
        lambda step: step._replace(observation={"state": step.observation["state"]}),
        r"keys \['image', 'state'\] as in its spec, got \['state'\]",
    ),
    "structure": (lambda step: step._replace(observation=step.observation["state"]), "got float32 "),
    "number": (functools.partial(replace, "state", lambda x: 0.5), r"\['state'\] must be .*, got a float"),
    "info": (lambda step: step._replace(env_info={"x": np.float32(1)}), "env_info of .* must be a tuple of 0"),
}


def make(change=None, first=0, **options):
    env = GymnasiumEnvironment(Pixels(**options), info_fields=["height"] if options else ())
    return env if change is None else Changes(env, change, first)


HOLDERS = {
    "single": lambda create: create(),
    "batched": lambda create: BatchedEnvironment([make(), create()]),
    "thread": ThreadEnvironment,
    "caller": lambda create: ParallelEnvironment([create], num_workers=0),
    "wrapped": lambda create: Wrapper(create()),
}


def run(env, num_steps=2):
    with env:
        env.reset()
        for _ in range(num_steps):
            env.advance(np.zeros(env.batch_size or (), np.int64))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_values_that_do_not_match_their_spec_raise(holder, change, first):
    function, message = CHANGES[change]
    with pytest.raises(SpecMismatchError, match=message):
        run(HOLDERS[holder](functools.partial(make, function, first)))


@pytest.mark.parametrize("change", ["shape", "dtype", "field", "info"])
def test_shared_memory_checks_every_step(change):
    function, message = CHANGES[change]
    with pytest.raises(SpecMismatchError, match=message):
        run(HOLDERS["caller"](functools.partial(make, function, 3)), 4)


def test_worker_processes_report_mismatches_by_name():
    constructors = [make, functools.partial(make, CHANGES["shape"][0], 1)]
    with pytest.raises(SpecMismatchError, match=r"observation of .*\['state'\] must be float32 \[3\]"):
        run(ParallelEnvironment(constructors, num_workers=1, caller_steps=False))


@pytest.mark.parametrize("holder", ["single", "batched", "caller"])
def test_missing_info_raises(holder):
    create = functools.partial(make, lacks_info=True)
    env = BatchedEnvironment([create()]) if holder == "batched" else HOLDERS[holder](create)
    with pytest.raises(SpecMismatchError, match=r"info\['height'\] of Pixels is missing in step 2"):
        run(env)


def test_batches_of_one_kind_agree_about_untransformed():
    envs = [
        BatchedEnvironment([Keeps(GymnasiumEnvironment(Pixels()))]),
        ParallelEnvironment([lambda: Keeps(GymnasiumEnvironment(Pixels()))], num_workers=0),
    ]
    for env in envs:
        with env:
            step = env.reset()
            assert step.untransformed == ()
    assert stack([step, step]).step_type.shape == (2, 1)
    assert stack([tuple(step), step]) == stack([step, tuple(step)]) == ()


class Keeps(Wrapper):
    """A wrapper that refers to the time steps before it."""

    def _transform_time_step(self, time_step):
        return time_step._replace(untransformed=time_step)


def test_strings_may_be_shorter_than_their_spec():
    from rlds2reverb.envs.env_specs import require_spec

    require_spec(np.str_("ab"), ArraySpec((), np.dtype("U64")), "x")
    with pytest.raises(SpecMismatchError, match="x must be"):
        require_spec(np.str_("a" * 65), ArraySpec((), np.dtype("U64")), "x")
