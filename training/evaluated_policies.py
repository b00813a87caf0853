"""Policies whose value is estimated from data: their actions in each state, and the probabilities of these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import tf_policy
from tf_agents.trajectories import PolicyStep, TimeStep, time_step as ts
from tf_agents.utils import nest_utils

from rlds2reverb.adders.places import Take
from rlds2reverb.errors import ArgumentError, SpecMismatchError
from rlds2reverb.learners.agents.policies import ActorPolicy
from rlds2reverb.learners.agents.unit_conversions import BoundedActions, DiscreteActions
from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.learners.runs import Run, is_run_directory, load_run
from rlds2reverb.policies.batched_policies import BatchedPolicy
from rlds2reverb.policies.onnx_policies import OnnxPolicy, is_onnx_file
from rlds2reverb.policies.saved_policies import POLICY_FOLDER, find_policy, is_saved_model, load_policy
from rlds2reverb.system.code_fingerprints import describe_reference
from rlds2reverb.system.sealed_files import file_digest
from rlds2reverb.types import fields
from rlds2reverb.types.specs import Nest, describe, leaves, map_structure, path_name, to_tensor_spec
from rlds2reverb.types.trajectories import FIRST, MID

from .directories import require_one_run

#: Number of actions that stand for those of a stochastic policy with continuous actions in one state.
_NUM_SAMPLES = 8


class FunctionPolicy(tf_policy.TFPolicy):
    """A policy that a function of arrays computes, named like it, from observations [B, ...] to actions [B, ...]."""

    def __init__(self, function: Callable[[Nest], Any], time_step_spec: TimeStep, action_spec: Any):
        """Sets the function and the specs of the data."""
        super().__init__(time_step_spec, action_spec)
        self._function, self._name = function, getattr(function, "__name__", type(function).__name__)

    def _action(self, time_step: TimeStep, policy_state: Any, seed: Any) -> PolicyStep:
        spec, observation = self.action_spec, time_step.observation

        def call(*arrays: Any) -> np.ndarray:
            nest = tf.nest.pack_sequence_as(observation, [array.numpy() for array in arrays])
            action = np.asarray(self._function(nest), spec.dtype.as_numpy_dtype)
            if action.shape != (len(arrays[0]), *spec.shape):
                raise SpecMismatchError(
                    f"the policy {describe_reference(self._function)} must return actions "
                    f"{[len(arrays[0]), *spec.shape]} for a batch of {len(arrays[0])} observations, got "
                    f"{list(action.shape)}"
                )
            return action

        action = tf.py_function(call, tf.nest.flatten(observation), spec.dtype)
        return PolicyStep(tf.ensure_shape(action, [None, *spec.shape]), policy_state)


class EvaluatedPolicy:
    """A policy, called with batches of observations, or along episodes if it has a state.

    Attributes:
      name: name for tables.
      run: the training run that it belongs to; None if unknown.
      actions: its `BoundedActions` or `DiscreteActions`.
      has_state: whether its actions depend on earlier steps.
      action_mask: the option of this name of its run; None if unknown.
      has_goals: whether it observes goals, which its run drew from the data.
    """

    def __init__(self, policy: Any):
        """Loads the policy.

        Args:
          policy: a `Run`, the directory of a run or a SavedModel, an ONNX file, or a TF-Agents `TFPolicy`.

        Raises:
          TypeError: If it is not a policy.
          ValueError: If there is no policy in the directory, an ONNX file does not state the bounds of its actions, or
            they are unsupported.
        """
        self.run, self._policy, self.name, self._files = _load(policy)
        state = self._policy.get_initial_state(batch_size=1)
        self.has_state = bool(tf.nest.flatten(state))
        configuration = {} if self.run is None else self.run.configuration
        algo, self.action_mask = configuration.get("algo"), configuration.get("action_mask")
        is_known = algo is not None and not isinstance(self._policy, GraphOfOnnxPolicy)
        self.has_goals = is_known and get_algorithm(str(algo)).items == "goals"
        is_discrete = tf.nest.flatten(self._policy.action_spec)[0].dtype.is_integer
        self.actions: Any = (DiscreteActions if is_discrete else BoundedActions)(self._policy.action_spec)
        number, observation = tf.TensorSpec([], tf.float32), self._policy.time_step_spec.observation
        time_step = TimeStep(tf.TensorSpec([], tf.int32), number, number, observation)
        inputs = time_step, tf.nest.map_structure(lambda leaf: leaf[0], state)
        batched = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), inputs)
        self._act = tf.function(self._call, autograph=False).get_concrete_function(
            *batched, tf.TensorSpec([2], tf.int32)
        )
        self._is_random: bool | None = None

    @property
    def folder(self) -> Path | None:
        """The directory of its run, or else its own; None if it was not loaded from a directory."""
        return self._files if self.run is None else self.run.path

    def fingerprint(self) -> list[str]:
        """Returns the digests of its files."""
        if self._files and self._files.is_file():
            return [file_digest(self._files)]
        patterns = ("saved_model.pb", "policy_specs.pbtxt", "variables/*") if self._files else ()
        return [file_digest(path) for pattern in patterns for path in sorted(self._files.glob(pattern))]  # type: ignore[union-attr]

    @property
    def is_discrete(self) -> bool:
        """True if the actions are integers."""
        return isinstance(self.actions, DiscreteActions)

    def require_match(self, observation_spec: Any) -> None:
        """Raises `SpecMismatchError` unless the policy accepts observations of a spec; further fields are allowed."""
        given = dict(leaves(observation_spec))
        for path, leaf in leaves(self._policy.time_step_spec.observation):
            found = given.get(path)
            if found is None or (found.shape, found.dtype) != (leaf.shape, leaf.dtype):
                got = "no such field" if found is None else describe(found)
                raise SpecMismatchError(
                    f"{path_name(path, 'observation')} must be {describe(leaf)} for {self.name}, but the data contain "
                    f"{got}; pass data of the environment that the policy was trained for"
                )

    def choose(self, observation: Nest, seed: int) -> np.ndarray:
        """Returns what the policy does in some states, float32 `[B, M, C]`; see `fitted_q.PolicyTransitions`.

        M is 1 if the policy is deterministic, or if it knows the probabilities of discrete actions. Otherwise, several
        actions are sampled.

        Args:
          observation: nest of arrays `[B, ...]`.
          seed: random seed of the samples of the policies of `rlds2reverb`; others use TensorFlow's global seed.
        """
        if self.is_discrete:
            num = len(tf.nest.flatten(observation)[0])
            actions = self.actions.to_environment(np.arange(self.actions.num_actions)).numpy()
            found = [self._find_log_prob(observation, np.full(num, action)) for action in actions]
            if columns := [column for column in found if column is not None]:
                return np.exp(np.stack(columns, axis=-1))[:, None].astype(np.float32)
        samples = [self.to_choice(self._sample(observation, seed))]
        if self._acts_randomly(observation):
            samples += [self.to_choice(self._sample(observation, seed + k)) for k in range(1, _NUM_SAMPLES)]
        return np.stack(samples, axis=1)

    def act(self, observation: Nest, seed: int) -> np.ndarray:
        """Returns the choice of an action of the policy in each state, float32 `[B, C]`; see `choose`."""
        return self.to_choice(self._sample(observation, seed))

    def choose_along(self, take: Take, num_steps: np.ndarray, seed: int) -> np.ndarray:
        """Returns what a policy with a state does in each step of E episodes, float32 `[N, 1, C]`.

        Its state follows from the observations and rewards of the episodes, and from the actions that it takes itself.

        Args:
          take: function that reads steps; their rows are those of the episodes, one after the other.
          num_steps: int64 `[E]`, numbers of steps, at least 1.
          seed: see `choose`.
        """
        order = np.argsort(-num_steps, kind="stable")
        firsts, state = (np.cumsum(num_steps) - num_steps)[order], self._policy.get_initial_state(len(order))
        rows, choices = [], []
        for step in range(int(num_steps.max())):
            at = firsts[: int((num_steps > step).sum())] + step
            observation = take(at, (fields.OBSERVATION,))[fields.OBSERVATION]
            rewards = take(at - 1, (fields.REWARD,))[fields.REWARD] if step else np.zeros(len(at))
            time_step = self._make_steps(observation, MID if step else FIRST, rewards)
            state = tf.nest.map_structure(partial(tf.gather, indices=np.arange(len(at))), state)
            action, state = self._act(time_step, state, tf.constant([seed, step]))
            rows.append(at)
            choices.append(self.to_choice(action.numpy()))
        return np.concatenate(choices)[np.argsort(np.concatenate(rows))][:, np.newaxis]

    def to_choice(self, action: np.ndarray) -> np.ndarray:
        """Returns actions `[B, ...]` in the environment's units as choices, float32 `[B, C]`.

        Raises:
          SpecMismatchError: If a discrete action is not one of the policy's.
        """
        if not self.is_discrete:
            return self.actions.to_unit(action).numpy()
        action, _ = self.actions.require_valid(action, tf.ones(len(action)))
        return tf.one_hot(self.actions.to_unit(action), self.actions.num_actions).numpy()

    def log_prob(self, observation: Nest, action: np.ndarray) -> np.ndarray:
        """Returns log probabilities, or log densities in the environment's units, float64 `[B]`.

        Discrete actions of policies without probabilities are certain, if the policy is deterministic.

        Args:
          observation: nest of arrays `[B, ...]`.
          action: actions `[B, ...]` in the environment's units.

        Raises:
          ArgumentError: If the policy has no probabilities.
          ValueError: If a probability is not a number below infinity.
        """
        log_probs = None if self.has_state else self._find_log_prob(observation, action)
        if log_probs is None:
            if self.has_state or not self.is_discrete or self._acts_randomly(observation):
                raise ArgumentError(
                    f"must be 'model' or 'fqe' for {self.name}, whose actions have no probabilities that importance "
                    "weights require: it was saved without them, or takes a single continuous action in each state; or "
                    "pass the collect_policy of an agent with a stochastic actor",
                    about="method",
                )
            return np.where(self._sample(observation, 0) == action, 0.0, -np.inf)
        if not (log_probs < np.inf).all():
            raise ValueError(f"the log probabilities of {self.name} must be below infinity, got {log_probs.max()}")
        return log_probs

    def _find_log_prob(self, observation: Nest, action: np.ndarray) -> np.ndarray | None:
        """Returns the log probabilities that the policy itself knows, float64 `[B]`; None if it knows none."""
        policy, given = self._policy, tf.cast(action, self.actions.spec.dtype)
        if isinstance(policy, ActorPolicy):
            try:
                return policy.log_prob(observation, given).numpy().astype(np.float64)
            except ValueError:
                return None
        if not isinstance(policy, tf_policy.TFPolicy):
            return None
        try:
            (distribution,) = tf.nest.flatten(policy.distribution(self._make_steps(observation)).action)
        except NotImplementedError:
            return None
        if not self.is_discrete and isinstance(distribution, tfp.distributions.Deterministic):
            return None
        log_probs = distribution.log_prob(given).numpy().astype(np.float64)
        return log_probs.reshape(len(log_probs), -1).sum(axis=1)

    def _acts_randomly(self, observation: Nest) -> bool:
        """Returns whether two calls of the policy differ, in the first states that it is called with."""
        if self._is_random is None:
            self._is_random = bool((self._sample(observation, 0) != self._sample(observation, 1)).any())
        return self._is_random

    def _sample(self, observation: Nest, seed: int) -> np.ndarray:
        return self._act(self._make_steps(observation), (), tf.constant([seed, 0]))[0].numpy()

    def _call(self, time_step: TimeStep, policy_state: Any, seed: tf.Tensor) -> tuple[tf.Tensor, Any]:
        options = {"seed": seed} if isinstance(self._policy, ActorPolicy) else {}
        step = self._policy.action(time_step, policy_state, **options)
        return tf.nest.flatten(step.action)[0], step.state

    def _make_steps(
        self, observation: Nest, step_type: np.int32 = FIRST, rewards: np.ndarray | float = 0.0
    ) -> TimeStep:
        """Returns time steps as tensors, without fields of the observation that the policy does not use."""
        pruned = nest_utils.prune_extra_keys(self._policy.time_step_spec.observation, observation)
        num = len(tf.nest.flatten(pruned)[0])
        columns = np.full(num, step_type, np.int32), np.full(num, rewards, np.float32), np.ones(num, np.float32)
        return tf.nest.map_structure(tf.convert_to_tensor, TimeStep(*columns, pruned))


def _load(policy: Any) -> tuple[Run | None, Any, str, Path | None]:
    """Returns the run of a policy or None, the policy, its name, and the directory of its files or None."""
    if isinstance(policy, Run):
        return policy, _to_graph(policy.policy), str(policy.path), policy.find_policy("last")
    if not isinstance(policy, (str, Path)):
        return None, BatchedPolicy(policy, 1).policy, getattr(policy, "name", None) or type(policy).__name__, None
    folder = Path(policy).expanduser()
    require_one_run(folder)
    is_file = is_saved_model(folder) or is_onnx_file(folder)
    owner, files = (folder.parent, folder) if is_file else (folder, find_policy(folder / POLICY_FOLDER))
    run = load_run(owner) if is_run_directory(owner) else None
    return run, _to_graph(load_policy(folder)), str(policy), files


def _to_graph(policy: Any) -> Any:
    return GraphOfOnnxPolicy(policy) if isinstance(policy, OnnxPolicy) else policy


class GraphOfOnnxPolicy(tf_policy.TFPolicy):
    """The policy of an ONNX file in a TensorFlow graph, which calls onnxruntime."""

    def __init__(self, policy: OnnxPolicy):
        """Sets the policy.

        Raises:
          ValueError: If its actions are continuous, and their bounds are unknown.
        """
        action = policy.action_spec
        if action.dtype.kind == "f" and action.minimum is None:
            raise ValueError("the ONNX file of a policy must state the bounds of actions; add them by describe_policy")
        self._onnx_policy = policy
        time_steps = ts.time_step_spec(to_tensor_spec(policy.observation_spec))
        super().__init__(
            time_steps,
            to_tensor_spec(action),
            to_tensor_spec(policy.state_spec),
            clip=False,
            automatic_state_reset=False,
        )

    def _get_initial_state(self, batch_size: Any) -> Any:
        return tf.nest.map_structure(tf.constant, self._onnx_policy.get_initial_state(batch_size))

    def _variables(self) -> list[tf.Variable]:
        return []

    def _action(self, time_step: TimeStep, policy_state: Any, seed: Any = None) -> PolicyStep:
        columns = [leaf for _, leaf in leaves(time_step.observation)]
        state = [leaf for _, leaf in leaves(policy_state)]
        num, specs = len(columns), [self.action_spec, *(leaf for _, leaf in leaves(self.policy_state_spec))]

        def act(*arrays: np.ndarray) -> list[np.ndarray]:
            parts = iter(arrays[num + 3 :])
            nest = map_structure(lambda _: next(parts), self._onnx_policy.state_spec)
            action, following = self._onnx_policy.act(arrays[:num], arrays[num : num + 3], nest)
            return [action, *(leaf for _, leaf in leaves(following))]

        inputs = [*columns, time_step.step_type, time_step.reward, time_step.discount, *state]
        action, *following = tf.numpy_function(act, inputs, [spec.dtype for spec in specs], stateful=False)
        for part, spec in zip((action, *following), specs, strict=True):
            part.set_shape([None, *spec.shape])
        parts = iter(following)
        return PolicyStep(action, map_structure(lambda _: next(parts), policy_state), ())
