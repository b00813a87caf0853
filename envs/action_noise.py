"""Noise that a wrapper adds to actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tree

from rlds2reverb.types.arguments import require_number
from rlds2reverb.types.specs import Nest, leaves, map_structure, path_name

from .env_info import add_info, make_info_spec
from .env_specs import BoundedArraySpec, make_zeros
from .environment import Environment, RandomWrapper, require_single
from .time_steps import TimeStep

EXECUTED_ACTION = "executed_action"


class TemporallyCorrelatedNoise(RandomWrapper):
    """Adds noise to actions that is correlated between consecutive steps.

        executed_t = clip(a_t + w * u_{t-1} + u_t),   u_t ~ Normal(0, sigma^2)

    Swamy et al. (2022), "Causal Imitation Learning under Temporally Correlated Noise". ALF's
    `TemporallyCorrelatedNoiseWrapper`.

    `prev_action` of a time step is the action before the noise (in ALF the one after it). The executed action is in
    `env_info["executed_action"]`; in the first step of an episode it is zero, or the closest value within the bounds.
    """

    def __init__(self, env: Environment, sigma: float = 0.5, past_noise_weight: float = 1.0, *, seed: int = 0):
        """Wraps an environment.

        Args:
          env: an environment that is not batched, whose actions are (nests of) floats with bounds.
          sigma: standard deviation of the noise, at least 0, in the units of the actions.
          past_noise_weight: weight w of the previous noise, at least 0.
          seed: seed of the noise; `seed(...)` replaces it.

        Raises:
          ValueError: If a number is out of range, or `env_info` has a field 'executed_action'.
          TypeError: If the environment is batched, or its actions are of a different kind.
        """
        super().__init__(require_single(env, "TemporallyCorrelatedNoise"), seed)
        require_number("sigma", sigma, 0)
        require_number("past_noise_weight", past_noise_weight, 0)
        for path, leaf in leaves(self.action_spec()):
            if not isinstance(leaf, BoundedArraySpec) or leaf.dtype.kind != "f":
                raise TypeError(f"TemporallyCorrelatedNoise requires floats, but {path_name(path, 'action')} is {leaf}")
        self._sigma, self._past_weight = sigma, past_noise_weight
        info_spec = make_info_spec(env, "TemporallyCorrelatedNoise", executed_action=self.action_spec())
        self._time_step_spec = self._time_step_spec._replace(env_info=info_spec)
        self._past_noise: Nest = ()

    def _reset(self) -> TimeStep:
        self._past_noise = self._sample()
        return add_info(self.env.reset(), executed_action=make_zeros(self.action_spec()))

    def _step(self, action: Nest) -> TimeStep:
        noise = self._sample()
        executed = tree.map_structure(self._add_noise, action, self._past_noise, noise, self.action_spec())
        self._past_noise = noise
        time_step = self.env.advance(executed)
        return add_info(time_step._replace(prev_action=action), executed_action=executed)

    def _sample(self) -> Nest:
        return map_structure(lambda spec: self._random.normal(scale=self._sigma, size=spec.shape), self.action_spec())

    def _add_noise(self, action: Any, past: Any, current: Any, spec: BoundedArraySpec) -> np.ndarray:
        noisy = action + self._past_weight * past + current
        return np.asarray(np.clip(noisy, spec.minimum, spec.maximum), spec.dtype)
