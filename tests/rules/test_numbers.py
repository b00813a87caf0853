"""The rule of numbers: an argument that must be in a range is an error outside of it, by its name, before work begins."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlds2reverb import TableConfig, batches, load
from rlds2reverb.adders import (
    GAE,
    ChunkTransitions,
    GoalRelabel,
    InitialPriorities,
    NStep,
    ReturnToGo,
    StepContextWindows,
    StepEpisodes,
    StepWindows,
    TrajectoryWindows,
    Transitions,
    Windows,
    off_policy,
    returns,
)
from rlds2reverb.datasets.steps.goals import GoalDistribution, GoalSampling
from rlds2reverb.datasets.steps.stores import build_store
from rlds2reverb.datasets.writers.writing import write_dataset
from rlds2reverb.envs import (
    ActionRepeat,
    DiscreteAction,
    GymnasiumEnvironment,
    ParallelEnvironment,
    PerformanceProfiler,
    RandomFirstEpisodeLength,
    TemporallyCorrelatedNoise,
    TimeLimit,
    check_wrapper,
    create_environment,
    record_episodes,
    record_film,
)
from rlds2reverb.envs.curriculum import TaskProgress
from rlds2reverb.envs.image_wrappers import EpisodicRandomFrameCrop, FrameFlip
from rlds2reverb.learners import RandomShift, StoredItems
from rlds2reverb.learners.ensemble_fit import FitOptions
from rlds2reverb.learners.hooks import EarlyStopHook, SaveCkptHook
from rlds2reverb.replay import BufferConfig
from rlds2reverb.reverb.sampling import SamplePlan
from rlds2reverb.training.experiments import choose_placement
from rlds2reverb.training.off_policy_evaluation import OffPolicySettings
from rlds2reverb.types.tables import RateLimiter, Selector

COLUMN = np.ones(3, np.float32)
STEPS = {"rewards": COLUMN, "discounts": COLUMN}
VALUES = {**STEPS, "values": COLUMN, "next_values": COLUMN}
make_env = partial(create_environment, "Pendulum-v1")
ENV = make_env()
NEORL = Path(__file__).parents[1] / "data/formats/neorl/Hopper-v3-low-8-train-noise.npz"
SHARE = (-0.1, 1.1)
#: A callable, valid arguments, and for each number values just outside of its range.
CASES = [
    (BufferConfig, {}, {"max_size": (0,), "anneal_step": (-1,), "max_use": (0,), "max_staleness": (0,), "alpha": (-1,),
                        "beta": SHARE, "priority_eps": (-1,), "sample_min_limit_ratio": (-1, 10_001)}),
    (BufferConfig, {"kind": "sequence", "length": 2}, {"length": (0,)}),
    (BufferConfig, {"kind": "episode", "window": 2}, {"window": (0,)}),
    (InitialPriorities, {}, {"constant": (-1,), "lowest": (-math.inf,), "highest": (math.inf,), "eps": (0, 2)}),
    (partial(InitialPriorities, "td"), {}, {"gamma": SHARE, "n": (0,), "eta": SHARE}),
    (GAE, {"gamma": 0.9, "lambda_": 0.8, "value_fn": None}, {"gamma": SHARE, "lambda_": SHARE}),
    (NStep, {"n": 2, "gamma": 0.9}, {"n": (0,), "gamma": SHARE}),
    (Transitions, {"n": 2, "gamma": 0.9}, {"n": (0,), "gamma": SHARE}),
    (ReturnToGo, {}, {"gamma": SHARE}),
    (StepWindows, {"length": 4}, {"length": (0,), "period": (0,), "burn_in": (-1,)}),
    (StepEpisodes, {"max_length": 4, "padding": "end"}, {"max_length": (0,)}),
    (TrajectoryWindows, {"length": 4}, {"length": (0,), "stride": (0,)}),
    *[(adder, {"length": 4}, {"length": (0,)}) for adder in (StepContextWindows, Windows)],
    (ChunkTransitions, {"n": 4, "gamma": 0.9}, {"n": (0,), "gamma": SHARE}),
    (GoalRelabel, {"reward_fn": len}, {"num_goals": (0,), "seed": (-1,)}),
    (GoalSampling, {"observed": GoalDistribution()}, {"gamma": SHARE, "subgoal_steps": (0,)}),
    (returns.discounted_returns, STEPS, {"gamma": SHARE}),
    (returns.returns_to_go, {"rewards": COLUMN}, {"gamma": SHARE}),
    (returns.td_errors, VALUES, {"gamma": SHARE, "n": (0,)}),
    (returns.generalized_advantage_estimation, {**VALUES, "gamma": 1, "lambda_": 1}, {"gamma": SHARE, "lambda_": SHARE}),
    (returns.lambda_returns, {**STEPS, "next_values": COLUMN, "gamma": 1, "lambda_": 1},
     {"gamma": SHARE, "lambda_": SHARE}),
    (returns.n_step_returns, {**STEPS, "n": 2}, {"gamma": SHARE, "n": (0,)}),
    (off_policy.v_trace, {**VALUES, "ratios": COLUMN, "gamma": 1, "lambda_": 1},
     {"gamma": SHARE, "lambda_": SHARE, "clip_c": (-0.1,), "clip_rho": (0.9,)}),
    (off_policy.retrace, {**VALUES, "ratios": COLUMN, "gamma": 1, "lambda_": 1}, {"gamma": SHARE, "lambda_": SHARE}),
    (TableConfig, {}, {"max_size": (0,), "max_times_sampled": (-1,)}),
    (Selector, {"kind": "prioritized", "exponent": 0.5}, {"exponent": (-1, 101)}),
    (RateLimiter, {}, {"size": (0,)}),
    (SamplePlan, {"servers": "localhost:1", "table": "t", "batch_size": 2},
     {"batch_size": (0,), "max_in_flight": (0,), "num_workers": (0,), "prefetch": (0,)}),
    (batches, {"source": [], "batch_size": 2},
     {"batch_size": (0,), "seed": (-1, 2**31), "world_size": (0,), "rank": (-1, 1), "epochs": (0,), "prefetch": (-1,)}),
    (write_dataset, {"source": [], "path": "x/1.0.0", "format": "rlds"}, {"shard_bytes": (0,)}),
    (FitOptions, {}, {"num_updates": (0,), "ensemble_size": (0,), "batch_size": (0,), "seed": (-1, 2**31),
                          "learning_rate": SHARE, "target_update_rate": SHARE}),
    (OffPolicySettings, {}, {"gamma": SHARE, "confidence": (0, 1), "num_resamples": (9,)}),
    (SaveCkptHook, {}, {"priority": (-1,), "every": (0,)}),
    (EarlyStopHook, {}, {"patience": (0,), "min_delta": (-1,)}),
    (ActionRepeat, {"env": ENV, "times": 2}, {"times": (0,)}),
    (TimeLimit, {"env": ENV, "duration": 2}, {"duration": (0,)}),
    (DiscreteAction, {"env": ENV, "num_bins": 2}, {"num_bins": (1,)}),
    (RandomFirstEpisodeLength, {"env": ENV, "max_length": 2}, {"max_length": (0,), "num_episodes": (0,)}),
    (TemporallyCorrelatedNoise, {"env": ENV}, {"sigma": (-1,), "past_noise_weight": (-1,)}),
    (TaskProgress, {"num_tasks": 2}, {"progress_favor": (0.9,), "current_score_update_rate": SHARE,
                                      "past_score_update_rate": (-0.1, 0.002), "warmup_period": (-1,)}),
    (record_episodes, {"env": ENV, "num_episodes": 1},
     {"num_episodes": (0,), "num_envs": (0,), "seed": (-1,), "epsilon": SHARE}),
    (GymnasiumEnvironment, {"env": ENV.gym}, {"duration": (0,), "discount": SHARE}),
    (EpisodicRandomFrameCrop, {"env": None}, {"cropping_fraction": (0, *SHARE)}),
    (FrameFlip, {"env": None}, {"ud_flip_prob": SHARE, "lr_flip_prob": SHARE}),
    (ParallelEnvironment, {"constructors": [make_env]}, {"num_workers": (-1,)}),
    (partial(ParallelEnvironment, caller_steps=False), {"constructors": [make_env]}, {"num_workers": (0,)}),
    (PerformanceProfiler, {"env": ENV}, {"process_steps": (0,)}),
    (check_wrapper, {"make_env": None}, {"num_steps": (0,)}),
    (RandomShift, {"max_shift": 1, "observation_spec": None}, {"max_shift": (0,), "seed": (-1, 2**32)}),
    (StoredItems, {"steps": None, "adder": None, "batch_size": 1}, {"batch_size": (0,), "seed": (-1, 2**31)}),
    (load, {"source": NEORL}, {"max_episode_steps": (0,)}),
    (choose_placement, {}, {"jobs": (0,)}),
    (build_store, {"source": None, "path": None}, {"num_workers": (-1,)}),
    (record_film, {"env": ENV, "policy": "random", "path": "x.gif"},
     {"num_episodes": (0,), "seed": (-1,), "images_per_sec": (0, 1001)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "arguments", "name", "values"),
    [
        pytest.param(make, arguments, name, values, id=f"{getattr(make, '__name__', 'td')}-{name}")
        for make, arguments, names in CASES
        for name, values in names.items()
    ],
)
def test_numbers_outside_of_their_range_raise_by_their_name(make, arguments, name, values):
    for value in (*values, math.nan, "1", True):
        with pytest.raises(ValueError, match=name.rstrip("_")):
            make(**{**arguments, name: value})
