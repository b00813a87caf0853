"""Off-policy evaluation: the value of policies, estimated from data without an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from rlds2reverb import fields
from rlds2reverb._arguments import require_count, require_number, require_one_of
from rlds2reverb.errors import ArgumentError, SourceError
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.spaces import Observations
from rlds2reverb.learners.fitted_q import FittedQ, FittedQOptions, PolicyTransitions
from rlds2reverb.learners.off_policy_evaluation import (
    ESTIMATORS,
    effective_sample_size,
    estimate_with_interval,
    estimator_terms,
    importance_weights,
    pad,
)
from rlds2reverb.learners.stored_items import StoredItems
from rlds2reverb.learners.train_loop import TrainLoop
from rlds2reverb.sources.moments import mark_transitions
from rlds2reverb.specs import Nest, map_structure
from rlds2reverb.store.cuts import Transitions
from rlds2reverb.store.goals import GoalDistribution, add_goal
from rlds2reverb.store.item_index import ItemIndex, draw_numbers, sample_uniformly

from .config import TrainingConfig
from .data import Moments
from .dataset import ItemData, open_dataset
from .evaluated_policies import EvaluatedPolicy
from .policy_estimates import PolicyEstimate, order_estimates
from .sources import open_source
from .step_info import SOURCE_FIELDS, make_step_info
from .tables import is_table

#: Value of `behaviour` for probabilities that behavioural cloning estimates, and prefix of a field of probabilities.
CLONED, _PROBABILITIES = "cloned", "log:"
#: Discount factor for policies without a run, as in `TrainingConfig`.
_GAMMA = 0.99
#: Goals of the transitions that Q-functions of policies with goals learn from: those of OGBench's values.
_GOALS = GoalDistribution(0.2, 0.5, 0.3, geometric=True)
#: Options of a run that determine which data its policy understands.
_DATA_OPTIONS = ("drop_fields", "cut_at_terminal", "cache_dir", "action_bounds")
#: Number of steps that a policy or a Q-function is called with, and of transitions that are read, at a time.
_NUM_ROWS, _NUM_READ = 4096, 16_384
#: Effective sample size, and number of episodes, below which an estimate is reported as unreliable.
_MIN_EPISODES = 10
#: Number of time constants after which 95 % of the distance to the fixed point are covered.
_MIN_TIME_CONSTANTS = 3


@dataclass(frozen=True)
class OffPolicySettings:
    """The settings of off-policy evaluation, which are arguments of `evaluate_offline`.

    Attributes:
      gamma: discount factor in [0, 1]; None for that of the policy's run, or 0.99.
      behaviour: 'cloned', or the name of a step field with the log probabilities of the data's actions (densities per
        unit of continuous actions), or 'log:NAME' for a field with probabilities.
      held_out: whether to use only the episodes that the policy's run held out; None to do so if it held some out and
        was trained on the same data.
      confidence: probability in (0, 1) that the intervals are meant to cover.
      num_resamples: number of resampled datasets of the bootstrap.
      fqe: options of fitted Q evaluation; its seed is that of the bootstrap as well, and behavioural cloning uses its
        sizes and numbers.

    Raises:
      ValueError: If a number is out of range.
    """

    gamma: float | None = None
    behaviour: str = CLONED
    held_out: bool | None = None
    confidence: float = 0.9
    num_resamples: int = 2000
    fqe: FittedQOptions = field(default_factory=FittedQOptions)

    def __post_init__(self) -> None:
        if self.gamma is not None:
            require_number("gamma", self.gamma, 0, 1)
        require_number("confidence", self.confidence, 0.01, 0.999)
        require_count("num_resamples", self.num_resamples, 10)


def evaluate_offline(policy: Any, source: Any, method: str = "fqe", **settings: Any) -> PolicyEstimate:
    """Estimates the discounted return of a policy from data that other policies recorded, without an environment.

        print(evaluate_offline("runs/iql", "hopper_medium-v2.hdf5"))

    The estimate refers to the first states of the episodes, and to the rewards of the data, also if the run transforms
    them. See docs/off_policy_evaluation.md for what each method assumes. At a truncated end 'fqe', 'dr' and 'wdr' add
    the value of the last observation; the other methods count nothing after it, so they estimate the return of
    episodes of the same lengths. Nothing follows a terminal state.

    The estimate of a policy with goals is that of reaching random states of the data from the first states, with the
    reward -1 for each step before. Policies with a state, such as Decision Transformer's, are asked for their actions
    along the episodes of the data.

    Args:
      policy: a `Run` (its last policy), the directory of a run or of a SavedModel, or a TF-Agents `TFPolicy`. The
        policies that `train` writes take the best or most likely action, whose probability is 1.
      source: a dataset; see `load`.
      method: 'fqe' for fitted Q evaluation; 'is', 'pdis', 'wis' and 'wpdis' for (weighted, per-decision) importance
        sampling; 'dr' and 'wdr' for (weighted) doubly robust estimation.
      **settings: attributes of `OffPolicySettings`.

    Raises:
      ArgumentError: If the method requires probabilities that the policy does not have, or a setting is invalid.
      SourceError: If the data are tables, or do not contain a field.
      SpecMismatchError: If the policy does not match the data.
      TrainingDivergedError: If fitted Q evaluation diverges.
      Exception: See `load_policy`, and `open_data` for the data.
    """
    return evaluate_policies([policy], source, [method], **settings)[0]


def rank_policies(policies: Iterable[Any], source: Any, method: str = "fqe", **settings: Any) -> list[PolicyEstimate]:
    """Estimates the discounted returns of several policies, and returns the estimates from the highest to the lowest.

        for result in rank_policies(["runs/iql", "runs/td3_bc"], "held_out.hdf5"):
            print(result.policy, result.estimate, result.interval)

    Args:
      policies: policies; see `evaluate_offline`.
      source: a dataset, best one that no policy was trained on.
      method: see `evaluate_offline`.
      **settings: attributes of `OffPolicySettings`.

    Raises:
      ValueError: If there are no policies.
      Exception: See `evaluate_offline`.
    """
    estimates = evaluate_policies(list(policies), source, [method], **settings)
    if not estimates:
        raise ValueError("policies must contain at least one policy")
    return order_estimates(estimates)


def evaluate_policies(
    policies: Sequence[Any],
    source: Any,
    methods: Sequence[str],
    **settings: Any,
) -> list[PolicyEstimate]:
    """Returns the estimates of several methods for each policy, which share what they can; see `evaluate_offline`."""
    for method in methods:
        require_one_of("method", method, list(ESTIMATORS))
    chosen, opened, results = OffPolicySettings(**settings), _OpenedData(source), []
    for policy in map(EvaluatedPolicy, policies):
        has_field = any(ESTIMATORS[method].uses_ratios for method in methods) and chosen.behaviour != CLONED
        data = opened.open(policy, (chosen.behaviour.removeprefix(_PROBABILITIES),) if has_field else ())
        evaluation = _Evaluation(policy, data, chosen)
        results += [evaluation.estimate(method) for method in methods]
    return results


class _OpenedData:
    """A dataset that is opened once for all policies that understand the same data."""

    def __init__(self, source: Any):
        if is_table(source):
            raise SourceError(
                "off-policy evaluation requires the episodes of a dataset, but a table contains only items"
            )
        self._source, self._opened = source, dict[str, ItemData]()

    def open(self, policy: EvaluatedPolicy, other_fields: Sequence[str]) -> ItemData:
        """Returns the data for a policy; raises as `open_data`."""
        saved = {} if policy.run is None else policy.run.configuration
        options = {name: saved[name] for name in _DATA_OPTIONS if saved.get(name)}
        algo = "gcbc" if policy.has_goals else "dqn" if policy.is_discrete else "td3"
        config = TrainingConfig(algo, env=None, **options)
        key = repr((config.algo, options))
        if key not in self._opened:
            opened = open_source(self._source)
            data = open_dataset(opened, config, other_fields=other_fields)
            assert isinstance(data, ItemData)
            self._opened[key] = data
        return self._opened[key]


class _Evaluation:
    """The data, ratios and values that the estimates of one policy share, computed when they are first needed.

    Rows are those of the episodes that are used, N steps of E episodes, of which R begin a transition. A policy with
    goals has a goal for each transition and for each first state, which are rows of the dataset.
    """

    def __init__(self, policy: EvaluatedPolicy, data: ItemData, settings: OffPolicySettings):
        self._policy, self._data, self._settings = policy, data, settings
        policy.require_match(data.time_step_spec.observation)
        saved = {} if policy.run is None else policy.run.configuration
        self._gamma = saved.get("gamma", _GAMMA) if settings.gamma is None else settings.gamma
        steps = data.items.steps
        self._is_used, self._is_held_out = self._find_episodes(steps.num_steps > 1)
        num_steps = steps.num_steps[self._is_used]
        self._rows = np.flatnonzero(np.repeat(self._is_used, steps.num_steps))
        self._num_steps, self._lengths, has_next = num_steps, num_steps - 1, mark_transitions(num_steps)
        self._starts, self._firsts = np.flatnonzero(has_next), np.cumsum(num_steps) - num_steps
        self._goals: np.ndarray | None = None
        self._first_goals: np.ndarray | None = None
        if policy.has_goals:
            self._set_goals()
        else:
            self._set_rewards()

    def _set_rewards(self) -> None:
        columns = self._take(np.arange(len(self._rows)), SOURCE_FIELDS)
        is_end = columns[fields.IS_TERMINAL][self._starts + 1]
        self._rewards = columns[fields.REWARD][self._starts].astype(np.float64)
        self._env_discounts = np.where(is_end, 0.0, columns[fields.DISCOUNT][self._starts].astype(np.float64))
        ends = np.cumsum(self._lengths) - 1
        # The observation after a truncated end may be missing. The discount of its transition is 0 then.
        is_unknown = ~is_end[ends] & (self._env_discounts[ends] == 0)
        self._known = np.delete(np.arange(len(self._starts)), ends[is_unknown])
        info = make_step_info(columns, self._num_steps, ("return_to_go",), gamma=self._gamma)
        self._returns = info["return_to_go"][self._starts]
        self._first_returns = info["return_to_go"][self._firsts]

    def _set_goals(self) -> None:
        """Draws goals, and sets the rewards and returns of the data for them."""
        seed, num = self._settings.fqe.seed, len(self._starts)
        index = ItemIndex(self._data.items.steps, Transitions(1, self._gamma), self._is_used)
        rows, last_rows = index.find_rows(np.arange(num))
        numbers = draw_numbers(seed, 0, 1, 3 * num).reshape(num, 3)
        self._goals, _ = _GOALS.sample(rows, last_rows - 1, numbers, index, gamma=self._gamma)
        self._first_goals, _ = index.find_rows(sample_uniformly(seed, 1, 1, len(self._firsts), num)[0])
        is_reached = self._goals == rows
        self._rewards, self._env_discounts = is_reached - 1.0, 1.0 - is_reached
        self._known = np.arange(num)
        ends = np.cumsum(self._lengths) - 1
        self._returns = self._returns_until(self._goals, rows, last_rows)
        firsts = rows[ends - self._lengths + 1]
        self._first_returns = self._returns_until(self._first_goals, firsts, last_rows[ends])

    def _returns_until(self, goals: np.ndarray, rows: np.ndarray, last_rows: np.ndarray) -> np.ndarray:
        """Returns the discounted sums of -1 per transition until the goal, or until the end if it is not reached."""
        is_ahead = (rows <= goals) & (goals <= last_rows)
        num = np.where(is_ahead, goals, last_rows) - rows
        return -num if self._gamma == 1 else -(1 - self._gamma**num) / (1 - self._gamma)

    def _find_episodes(self, is_used: np.ndarray) -> tuple[np.ndarray, bool]:
        """Returns which episodes are used, bool, and whether they are held-out ones."""
        described = {} if self._policy.run is None else self._policy.run.config.get("data") or {}
        held_out, wanted = described.get("held_out"), self._settings.held_out
        self._is_trained_on = is_same = described.get("fingerprint") == self._data.fingerprint
        if wanted and not (held_out and is_same):
            why = "was trained on different data" if held_out else "held out no episodes"
            raise ArgumentError(f"requires a run with held-out episodes of these data, but {self._policy.name} {why}; "
                                "pass other data, or train with a share of episodes held out", about="held_out",
                                validation=...)  # fmt: skip
        if wanted is False or not (held_out and is_same):
            return is_used, False
        chosen, self._is_trained_on = np.zeros_like(is_used), False
        chosen[np.flatnonzero(is_used)[held_out]] = True
        return chosen, True

    def estimate(self, method: str) -> PolicyEstimate:
        """Returns the estimate of a method."""
        estimator, settings = ESTIMATORS[method], self._settings
        if estimator.uses_ratios and self._policy.has_goals:
            raise ArgumentError(f"must be 'fqe' for {self._policy.name}, whose goals are not those of the data",
                                about="method")  # fmt: skip
        if estimator.uses_ratios:
            weights = importance_weights(self._log_ratios, estimator)
        else:
            weights = np.ones((len(self._lengths), 1))
        terms = self._make_terms(method)
        value, interval = estimate_with_interval(
            weights,
            terms,
            is_self_normalized=estimator.is_self_normalized,
            confidence=settings.confidence,
            num_resamples=settings.num_resamples,
            seed=settings.fqe.seed,
        )
        size = effective_sample_size(weights[:, -1]) if estimator.uses_ratios else None
        result = PolicyEstimate(
            self._policy.name,
            method,
            value,
            interval,
            settings.confidence,
            self._gamma,
            self._data.name,
            len(self._lengths),
            self._is_held_out,
            float(self._first_returns.mean()),
            self._settings.behaviour if estimator.uses_ratios else None,
            size,
        )
        return replace(result, warnings=tuple(self._find_problems(result)))

    def _make_terms(self, method: str) -> np.ndarray:
        """Returns the terms of a method, float64 [K, N, T + 1]; T is 0 for fitted Q evaluation."""
        if method == "fqe":
            return self._estimate_values(self._firsts, self._first_goals)[..., None]
        rewards, discounts = (pad(column, self._lengths) for column in (self._rewards, self._discounts))
        if not ESTIMATORS[method].uses_values:
            return estimator_terms(rewards, discounts)[None]
        values = pad(self._estimate_values(np.arange(len(self._rows))), self._lengths + 1)
        return estimator_terms(rewards, discounts, pad(self._q_values, self._lengths), values)

    @property
    def _num_time_constants(self) -> float:
        """The number of updates in time constants; see `FittedQOptions.target_update_rate`."""
        options = self._settings.fqe
        return options.num_updates * options.target_update_rate * (1 - self._gamma)

    @property
    def _discounts(self) -> np.ndarray:
        return self._gamma * self._env_discounts

    @property
    def _moments(self) -> Moments:
        """Statistics of the observations, which every dataset has."""
        assert self._data.moments is not None
        return self._data.moments

    # --- Probabilities

    @cached_property
    def _log_ratios(self) -> np.ndarray:
        """The logarithms of the importance ratios, float64 [E, T]."""
        names = (fields.OBSERVATION, fields.ACTION)
        new = self._map(lambda steps, _: self._policy.log_prob(*(steps[name] for name in names)), self._starts, names)
        old = self._find_behaviour()
        if num_invalid := int((~np.isfinite(old)).sum()):
            raise SourceError(
                f"the behaviour policy must give every action of the data a positive probability, but {num_invalid:,} "
                f"of {len(old):,} log probabilities ({self._settings.behaviour}) are not finite; check it, or use "
                f"{CLONED!r}"
            )
        if self._policy.is_discrete and old.max(initial=0) > 1e-5:
            raise SourceError(
                f"the log probabilities of discrete actions must be at most 0, got {old.max():.4g} "
                f"({self._settings.behaviour}); a field of probabilities is used as '{_PROBABILITIES}NAME'"
            )
        return pad(new - old, self._lengths)

    def _find_behaviour(self) -> np.ndarray:
        """Returns the log probabilities of the data's actions under the policy that took them, float64 [R]."""
        behaviour = self._settings.behaviour
        if behaviour != CLONED:
            name = behaviour.removeprefix(_PROBABILITIES)
            column = self._take(self._starts, (name,))[name].astype(np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.log(column) if behaviour.startswith(_PROBABILITIES) else column
        policy = self._clone()
        names = (fields.OBSERVATION, fields.ACTION)
        return self._map(
            lambda steps, _: policy.log_prob(*(steps[name] for name in names)).numpy().astype(np.float64),
            self._starts,
            names,
        )

    def _clone(self) -> Any:
        """Returns the stochastic policy of behavioural cloning, fitted to the episodes that are used."""
        options, moments = self._settings.fqe, self._moments
        agent = make_agent(
            "discrete_bc" if self._policy.is_discrete else "bc",
            self._data.time_step_spec,
            self._policy.actions.spec,
            observation_mean=moments.mean,
            observation_std=moments.std,
            hidden_sizes=options.hidden_sizes,
            learning_rate=options.learning_rate,
            seed=options.seed,
            **({} if self._policy.is_discrete else {"distribution": "gaussian"}),
        )
        items = StoredItems(
            self._data.items.steps,
            Transitions(1, self._gamma, reads_next=False),
            options.batch_size,
            seed=options.seed,
            is_used=self._is_used,
            convert=self._data.items.convert,
        )
        TrainLoop(agent, items)(options.num_updates)
        return agent.collect_policy

    # --- Values

    @cached_property
    def _next_choices(self) -> np.ndarray:
        """The choices of the policy after each transition, float32 [R, M, C]."""
        return self._choose(self._starts + 1, self._goals)

    def _choose(self, rows: np.ndarray, goals: np.ndarray | None) -> np.ndarray:
        """Returns the choices of the policy in some steps, float32 [rows, M, C]; see `EvaluatedPolicy.choose`."""
        if self._policy.has_state:
            return self._choices_along_episodes[rows]
        seed = self._settings.fqe.seed
        return self._map(
            lambda steps, first: self._policy.choose(steps[fields.OBSERVATION], seed + first),
            rows,
            (fields.OBSERVATION,),
            goals,
        )

    @cached_property
    def _choices_along_episodes(self) -> np.ndarray:
        """The choices of a policy with a state in all steps, float32 [N, 1, C]."""
        return self._policy.choose_along(self._take, self._num_steps, self._settings.fqe.seed)

    @cached_property
    def _fitted(self) -> FittedQ:
        """The Q-functions of the policy."""
        options, moments = self._settings.fqe, self._moments
        if not len(self._known):
            raise SourceError(
                "the observation after every transition is missing, so that no values can be fitted; see last_step"
            )
        spread = float(self._returns.std())
        fitted = FittedQ(
            Observations(self._data.time_step_spec.observation, moments.mean, moments.std),
            self._policy.actions,
            options,
            gamma=self._gamma,
            offset=float(self._returns.mean()),
            scale=spread if spread > 1e-6 else 1.0,
            bounds=(self._bound(min(self._rewards.min(), 0.0)), self._bound(max(self._rewards.max(), 0.0))),
        )
        rng, num = np.random.default_rng(options.seed), len(self._lengths)
        counts = np.ones((1, num)) if options.ensemble_size == 1 else rng.multinomial(
            num, np.full(num, 1 / num), options.ensemble_size
        )  # fmt: skip
        self._counts = np.repeat(counts, self._lengths, axis=1).astype(np.float32)
        fitted.fit(self._read_batches, num_per_call=max(_NUM_READ // options.batch_size, 1))
        return fitted

    def _bound(self, reward: float) -> float:
        """Returns the value of receiving a reward forever."""
        return reward * (1 / (1 - self._gamma) if self._gamma < 1 else np.inf) if reward else 0.0

    def _read_batches(self, first: int, count: int) -> PolicyTransitions:
        """Returns random transitions; see `FittedQ.fit`."""
        options = self._settings.fqe
        items = self._known[sample_uniformly(options.seed, first, count, options.batch_size, len(self._known))]
        chosen = items.ravel()
        rows, goals = self._starts[chosen], None if self._goals is None else self._goals[chosen]
        now = self._take(rows, (fields.OBSERVATION, fields.ACTION), goals)
        following = self._take(rows + 1, (fields.OBSERVATION,), goals)
        num_samples = self._next_choices.shape[1]
        samples = np.random.default_rng([options.seed, first]).integers(num_samples, size=len(rows))
        split: Any = partial(map_structure, lambda column: column.reshape(count, -1, *column.shape[1:]))
        return PolicyTransitions(
            split(now[fields.OBSERVATION]),
            split(self._policy.to_choice(now[fields.ACTION])),
            self._rewards[items].astype(np.float32),
            self._env_discounts[items].astype(np.float32),
            split(following[fields.OBSERVATION]),
            split(self._next_choices[chosen, samples]),
            np.moveaxis(self._counts[:, items], 0, 1),
        )

    def _estimate_values(self, rows: np.ndarray, goals: np.ndarray | None = None) -> np.ndarray:
        """Returns V(s), float64 [K, rows], the mean over the actions that the policy may take."""
        choices = self._choose(rows, goals)

        def compute(steps: dict[str, Nest], first: int) -> np.ndarray:
            some = np.moveaxis(choices[first : first + _NUM_ROWS], 1, 0)
            values = [self._fitted.values(steps[fields.OBSERVATION], choice) for choice in some]
            return np.mean(values, axis=0, dtype=np.float64).T

        return self._map(compute, rows, (fields.OBSERVATION,), goals).T

    @cached_property
    def _q_values(self) -> np.ndarray:
        """Q(s, a) of the data's actions, float64 [K, R]."""

        def compute(steps: dict[str, Nest], first: int) -> np.ndarray:
            choice = self._policy.to_choice(steps[fields.ACTION])
            return self._fitted.values(steps[fields.OBSERVATION], choice).T.astype(np.float64)

        return self._map(compute, self._starts, (fields.OBSERVATION, fields.ACTION)).T

    def _map(
        self,
        function: Callable[[dict[str, Nest], int], np.ndarray],
        rows: np.ndarray,
        names: Sequence[str],
        goals: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns the results of a function of some fields and the place of the first row, for a part of rows each."""
        parts = [slice(at, at + _NUM_ROWS) for at in range(0, len(rows), _NUM_ROWS)]
        return np.concatenate(
            [
                function(self._take(rows[part], names, None if goals is None else goals[part]), part.start)
                for part in parts
            ]
        )

    def _take(self, rows: np.ndarray, names: Sequence[str], goals: np.ndarray | None = None) -> dict[str, Nest]:
        """Returns some fields of steps, with goals in the observations if there are any."""
        taken = self._data.items.take(self._rows[rows], names)
        if goals is None:
            return taken
        reached = self._data.items.take(goals, (fields.OBSERVATION,))[fields.OBSERVATION]
        return {**taken, fields.OBSERVATION: add_goal(taken[fields.OBSERVATION], reached)}

    def _find_problems(self, result: PolicyEstimate) -> list[str]:
        """Returns sentences about what may be wrong with an estimate."""
        problems, estimator, num = [], ESTIMATORS[result.method], result.num_episodes
        size, ends = result.effective_sample_size, np.cumsum(self._lengths) - 1
        num_unknown = len(self._starts) - len(self._known)
        num_truncated = int((self._env_discounts[ends] > 0).sum()) + num_unknown
        low, high = self._returns.min(), self._returns.max()
        if size is not None and size < _MIN_EPISODES:
            problems.append(
                f"the effective sample size is {size:,.1f} of {num:,} episodes, so neither the estimate nor its "
                "interval is reliable; use fqe, or a policy closer to the data"
            )
        if num < _MIN_EPISODES:
            problems.append(f"there are only {num} episodes; bootstrap intervals of so few are too narrow")
        if self._is_trained_on:
            problems.append("the policy was trained on these episodes, which favours it; use others")
        if num_truncated and not estimator.uses_values:
            problems.append(
                f"{num_truncated:,} of {num:,} episodes are truncated, and the estimate does not include later rewards"
            )
        if estimator.uses_values and self._settings.fqe.ensemble_size == 1:
            problems.append("a single Q-function was fitted; the interval does not include the uncertainty of the fit")
        if estimator.uses_values and self._num_time_constants < _MIN_TIME_CONSTANTS:
            problems.append(
                f"the Q-functions may not have converged: the updates are {self._num_time_constants:.1f} time "
                f"constants, of which {_MIN_TIME_CONSTANTS} are enough; make more updates, or raise target_update_rate"
            )
        if estimator.uses_values and num_unknown:
            problems.append(
                f"{num_unknown:,} of {num:,} episodes are truncated without a last observation; their last transitions "
                "are left out of the fit"
            )
        if self._policy.has_state:
            problems.append(
                "the actions of the policy depend on earlier steps, which are those of the data here, not its own"
            )
        if estimator.uses_values and not low <= result.estimate <= high:
            problems.append(
                "the estimate is an extrapolation: the discounted returns from all steps of the data are "
                f"{low:,.4g} to {high:,.4g}"
            )
        return problems
