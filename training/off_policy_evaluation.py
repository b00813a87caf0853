"""Off-policy evaluation: the value of policies, estimated from data without an environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from rlds2reverb import Transitions, __version__
from rlds2reverb.datasets.steps.item_index import sample_uniformly
from rlds2reverb.errors import ArgumentError, SourceError
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.unit_conversions import Observations
from rlds2reverb.learners.checkpoints import Checkpoints
from rlds2reverb.learners.fitted_q import FittedQ, FittedQOptions, PolicyTransitions
from rlds2reverb.learners.stored_items import StoredItems
from rlds2reverb.learners.train_loop import TrainLoop
from rlds2reverb.learners.value_estimators import (
    ESTIMATORS,
    effective_sample_size,
    estimate_with_interval,
    estimator_terms,
    importance_weights,
    pad,
)
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count, require_number, require_one_of
from rlds2reverb.types.specs import Nest, map_structure

from .data import Moments
from .evaluated_policies import EvaluatedPolicy
from .evaluation_data import ROWS_PER_CALL, EvaluationData, EvaluationSource
from .policy_estimates import PolicyEstimate, load_estimate, order_estimates
from .progress import Progress, format_time_left

#: Value of `behaviour` for probabilities that behavioural cloning estimates, and prefix of a field of probabilities.
CLONED, _PROBABILITIES = "cloned", "log:"
#: Number of transitions that are read at a time.
NUM_READ = 16_384
#: Effective sample size, and number of episodes, below which an estimate is reported as unreliable.
_MIN_EPISODES = 10
#: Number of time constants after which 95 % of the distance to the fixed point are covered.
_MIN_TIME_CONSTANTS = 3
#: Directory of the estimates and fits of a policy, next to its files.
_ESTIMATES = "estimates"
#: Seconds between two checkpoints of a fit, and between two lines about its progress, live and elsewhere.
SAVE_SECS, _LIVE_SECS, LINE_SECS = 30.0, 0.5, 10.0


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


def evaluate_offline(
    policy: Any, source: Any, method: str = "fqe", *, progress: bool = True, **settings: Any
) -> PolicyEstimate:
    """Estimates the discounted return of a policy from data that other policies recorded, without an environment.

        print(evaluate_offline("runs/iql", "hopper_medium-v2.hdf5"))

    The estimate refers to the first states of the episodes, and to the rewards of the data, also if the run transforms
    them. See docs/off_policy_evaluation.md for what each method assumes. At a truncated end 'fqe', 'dr' and 'wdr' add
    the value of the last observation; the other methods count nothing after it, so they estimate the return of
    episodes of the same lengths. Nothing follows a terminal state.

    The estimate of a policy with goals is that of reaching random states of the data from the first states, with the
    reward -1 for each step before. Policies with a state, such as Decision Transformer's, are asked for their actions
    along the episodes of the data.

    The estimate of a policy in a directory is saved in its `estimates/`, and so is every half minute of a fit. The same
    call uses them, with a note, if policy, data, settings and version are the same by content.

    Args:
      policy: a `Run` (its last policy), the directory of a run or of a SavedModel, or a TF-Agents `TFPolicy`. The
        policies that `train` writes take the best or most likely action, whose probability is 1.
      source: a dataset; see `load`.
      method: 'fqe' for fitted Q evaluation; 'is', 'pdis', 'wis' and 'wpdis' for (weighted, per-decision) importance
        sampling; 'dr' and 'wdr' for (weighted) doubly robust estimation.
      progress: whether to show progress on stderr or in the notebook.
      **settings: attributes of `OffPolicySettings`.

    Raises:
      ArgumentError: If the method requires probabilities that the policy does not have, or a setting is invalid.
      SourceError: If the data are tables, or do not contain a field.
      SpecMismatchError: If the policy does not match the data.
      TrainingDivergedError: If fitted Q evaluation diverges.
      Exception: See `load_policy`, and `open_data` for the data.
    """
    return evaluate_policies([policy], source, [method], Progress(quiet=not progress), **settings)[0]


def rank_policies(
    policies: Iterable[Any], source: Any, method: str = "fqe", *, progress: bool = True, **settings: Any
) -> list[PolicyEstimate]:
    """Estimates the discounted returns of several policies, and returns the estimates from the highest to the lowest.

        for result in rank_policies(["runs/iql", "runs/td3_bc"], "held_out.hdf5"):
            print(result.policy, result.estimate, result.interval)

    Args:
      policies: policies; see `evaluate_offline`.
      source: a dataset, best one that no policy was trained on.
      method: see `evaluate_offline`.
      progress: see `evaluate_offline`.
      **settings: attributes of `OffPolicySettings`.

    Raises:
      ValueError: If there are no policies.
      Exception: See `evaluate_offline`.
    """
    estimates = evaluate_policies(list(policies), source, [method], Progress(quiet=not progress), **settings)
    if not estimates:
        raise ValueError("policies must contain at least one policy")
    return order_estimates(estimates)


def evaluate_policies(
    policies: Sequence[Any],
    source: Any,
    methods: Sequence[str],
    progress: Progress | None = None,
    **settings: Any,
) -> list[PolicyEstimate]:
    """Returns the estimates of several methods for each policy, which share what they can; see `evaluate_offline`.

    All estimates but the last one are printed as soon as they are known.
    """
    for method in methods:
        require_one_of("method", method, list(ESTIMATORS))
    chosen = OffPolicySettings(**settings)
    if chosen.behaviour != CLONED and not any(ESTIMATORS[method].uses_ratios for method in methods):
        names = ", ".join(name for name, estimator in ESTIMATORS.items() if estimator.uses_ratios)
        sentence = f"has no effect on {', '.join(methods)}; add a method that uses probabilities: {names}"
        raise ArgumentError(sentence, about="behaviour", value=chosen.behaviour)
    field_names = () if chosen.behaviour == CLONED else (chosen.behaviour.removeprefix(_PROBABILITIES),)
    progress, results = progress or Progress(quiet=True), list[PolicyEstimate]()
    opened = EvaluationSource(source)
    for policy in map(EvaluatedPolicy, policies):
        dataset = opened.open(policy, field_names)
        data = EvaluationData(policy, dataset, gamma=chosen.gamma, held_out=chosen.held_out, seed=chosen.fqe.seed)
        evaluation = _Evaluation(policy, data, chosen, progress)
        for method in methods:
            if results:
                progress.note(str(results[-1]).splitlines()[0])
            results.append(evaluation.estimate(method))
    progress.close()
    return results


class _Evaluation:
    """The ratios and values that the estimates of one policy share, computed when they are first needed.

    Names of sizes are those of `EvaluationData`: N steps of E episodes, of which R begin a transition.
    """

    def __init__(self, policy: EvaluatedPolicy, data: EvaluationData, settings: OffPolicySettings, progress: Progress):
        self._policy, self._data, self._settings, self._progress = policy, data, settings, progress

    @cached_property
    def _folder(self) -> Path | None:
        """The directory of estimates and fits with this content; None if they cannot be saved."""
        policy, data, settings = self._policy, self._data, self._settings
        if policy.folder is None:
            return None
        dataset, numbers = data.dataset, (data.gamma, data.is_held_out, data.is_trained_on)
        about = (__version__, policy.fingerprint(), dataset.fingerprint, dataset.name, dataset.action_spec)
        digest = xxhash.xxh3_128(repr((about, settings, numbers)).encode())
        given = [] if settings.behaviour == CLONED else [self._find_behaviour()]
        for column in (data.is_used, data.rewards, data.env_discounts, *given):
            digest.update(np.ascontiguousarray(column).data)
        folder = policy.folder / _ESTIMATES / digest.hexdigest()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._progress.warn(f"the estimates of {policy.name} are not saved ({error})")
            return None
        return folder

    def estimate(self, method: str) -> PolicyEstimate:
        """Returns the estimate of a method, which may be saved already."""
        path = None if self._folder is None else self._folder / f"{method}.json"
        if path is not None and (saved := load_estimate(path)) is not None:
            self._progress.note(f"{self._policy.name}: using the estimate that was saved in {path}")
            return replace(saved, policy=self._policy.name)
        result = self._compute(method)
        if path is not None:
            save_json(path, result.as_dict())
        return result

    def _compute(self, method: str) -> PolicyEstimate:
        estimator, settings = ESTIMATORS[method], self._settings
        if estimator.uses_ratios and self._policy.has_goals:
            raise ArgumentError(f"must be 'fqe' for {self._policy.name}, whose goals are not those of the data",
                                about="method")  # fmt: skip
        if estimator.uses_ratios:
            weights = importance_weights(self._log_ratios, estimator)
        else:
            weights = np.ones((len(self._data.lengths), 1))
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
            self._data.gamma,
            self._data.dataset.name,
            len(self._data.lengths),
            self._data.is_held_out,
            float(self._data.first_returns.mean()),
            self._settings.behaviour if estimator.uses_ratios else None,
            size,
        )
        return replace(result, warnings=tuple(self._find_warnings(result)))

    def _make_terms(self, method: str) -> np.ndarray:
        """Returns the terms of a method, float64 [K, N, T + 1]; T is 0 for fitted Q evaluation."""
        if method == "fqe":
            return self._estimate_values(self._data.firsts, self._data.first_goals)[..., None]
        rewards = pad(self._data.rewards, self._data.lengths)
        discounts = pad(self._data.gamma * self._data.env_discounts, self._data.lengths)
        if not ESTIMATORS[method].uses_values:
            return estimator_terms(rewards, discounts)[None]
        values = pad(self._estimate_values(np.arange(self._data.num_steps.sum())), self._data.lengths + 1)
        return estimator_terms(rewards, discounts, pad(self._q_values, self._data.lengths), values)

    @property
    def _moments(self) -> Moments:
        """Statistics of the observations, which every dataset has."""
        assert self._data.dataset.moments is not None
        return self._data.dataset.moments

    # --- Probabilities

    @cached_property
    def _log_ratios(self) -> np.ndarray:
        """The logarithms of the importance ratios, float64 [E, T]."""
        new, old = self._find_log_probs(self._policy), self._find_behaviour()
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
        return pad(new - old, self._data.lengths)

    def _find_behaviour(self) -> np.ndarray:
        """Returns the log probabilities of the data's actions under the policy that took them, float64 [R]."""
        behaviour = self._settings.behaviour
        if behaviour != CLONED:
            name = behaviour.removeprefix(_PROBABILITIES)
            column = self._data.take(self._data.starts, (name,))[name].astype(np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.log(column) if behaviour.startswith(_PROBABILITIES) else column
        return self._find_log_probs(self._clone())

    def _find_log_probs(self, policy: Any) -> np.ndarray:
        """Returns the log probabilities of the data's actions under a policy, float64 [R]."""
        names = (fields.OBSERVATION, fields.ACTION)
        return self._data.map(
            lambda steps, _: np.asarray(policy.log_prob(*(steps[name] for name in names)), np.float64),
            self._data.starts,
            names,
        )

    def _clone(self) -> Any:
        """Returns the stochastic policy of behavioural cloning, fitted to the episodes that are used."""
        options, moments = self._settings.fqe, self._moments
        agent = make_agent(
            "discrete_bc" if self._policy.is_discrete else "bc",
            self._data.dataset.time_step_spec,
            self._policy.actions.spec,
            observation_mean=moments.mean,
            observation_std=moments.std,
            hidden_sizes=options.hidden_sizes,
            learning_rate=options.learning_rate,
            seed=options.seed,
            **({"action_mask": self._policy.action_mask} if self._policy.is_discrete else {"distribution": "gaussian"}),
        )
        items = StoredItems(
            self._data.dataset.items.steps,
            Transitions(1, self._data.gamma, reads_next=False),
            options.batch_size,
            seed=options.seed,
            is_used=self._data.is_used,
            convert=self._data.dataset.items.convert,
        )
        loop = TrainLoop(agent, items)
        loop.prepare()  # Creates the variables of the optimiser.

        def train(first: int, last: int) -> None:
            loop.step = first
            loop(last)

        self._make_updates("behavioural cloning", {"agent": agent}, train, 100)
        return agent.collect_policy

    def _make_updates(
        self, title: str, trackables: dict[str, Any], update: Callable[[int, int], None], size: int
    ) -> None:
        """Makes all updates of a fit, from its checkpoint on if there is one, and shows the progress.

        Args:
          title: name of the fit.
          trackables: contents of a checkpoint.
          update: function that makes the updates from a number to another.
          size: maximum number of updates to make at a time.
        """
        total, first = self._settings.fqe.num_updates, 0
        checkpoints = (
            None if self._folder is None else Checkpoints(self._folder / title, trackables, keep_checkpoints=1)
        )
        if checkpoints is not None and (saved := checkpoints.open()) is not None:
            checkpoints.restore(saved)
            first = saved.step
        began = saved_at = shown_at = time.monotonic()
        for done in range(first, total, size):
            last = min(done + size, total)
            update(done, last)
            now = time.monotonic()
            if now > shown_at + (_LIVE_SECS if self._progress.is_live else LINE_SECS):
                left = format_time_left((now - began) / (last - first) * (total - last))
                self._progress.show(f"{self._policy.name}: {title}   {last:>9,} of {total:,}   {left}")
                shown_at = now
            if checkpoints is not None and (last == total or now > saved_at + SAVE_SECS):
                checkpoints.save(last, {})
                saved_at = now

    # --- Values

    @cached_property
    def _next_choices(self) -> np.ndarray:
        """The choices of the policy after each transition, float32 [R, M, C]."""
        return self._choose(self._data.starts + 1, self._data.goals)

    def _choose(self, rows: np.ndarray, goals: np.ndarray | None) -> np.ndarray:
        """Returns the choices of the policy in some steps, float32 [rows, M, C]; see `EvaluatedPolicy.choose`."""
        if self._policy.has_state:
            return self._choices_along_episodes[rows]
        seed = self._settings.fqe.seed
        return self._data.map(
            lambda steps, first: self._policy.choose(steps[fields.OBSERVATION], seed + first),
            rows,
            (fields.OBSERVATION,),
            goals,
        )

    @cached_property
    def _choices_along_episodes(self) -> np.ndarray:
        """The choices of a policy with a state in all steps, float32 [N, 1, C]."""
        return self._policy.choose_along(self._data.take, self._data.num_steps, self._settings.fqe.seed)

    @cached_property
    def _fitted(self) -> FittedQ:
        """The Q-functions of the policy."""
        options, moments = self._settings.fqe, self._moments
        if not len(self._data.known):
            raise SourceError(
                "the observation after every transition is missing, so that no values can be fitted; see last_step"
            )
        spread = float(self._data.returns.std())
        fitted = FittedQ(
            Observations(self._data.dataset.time_step_spec.observation, moments.mean, moments.std),
            self._policy.actions,
            options,
            gamma=self._data.gamma,
            offset=float(self._data.returns.mean()),
            scale=spread if spread > 1e-6 else 1.0,
            bounds=(self._bound(min(self._data.rewards.min(), 0.0)), self._bound(max(self._data.rewards.max(), 0.0))),
        )
        rng, num = np.random.default_rng(options.seed), len(self._data.lengths)
        counts = np.ones((1, num)) if options.ensemble_size == 1 else rng.multinomial(
            num, np.full(num, 1 / num), options.ensemble_size
        )  # fmt: skip
        self._counts = np.repeat(counts, self._data.lengths, axis=1).astype(np.float32)

        def fit(first: int, last: int) -> None:
            fitted.fit(self._read_batches(first, last - first), first)

        self._make_updates("fitted Q evaluation", fitted.trackables, fit, max(NUM_READ // options.batch_size, 1))
        return fitted

    def _bound(self, reward: float) -> float:
        """Returns the value of receiving a reward forever."""
        return reward * (1 / (1 - self._data.gamma) if self._data.gamma < 1 else np.inf) if reward else 0.0

    def _read_batches(self, first: int, count: int) -> PolicyTransitions:
        """Returns random transitions; see `FittedQ.fit`."""
        options, data = self._settings.fqe, self._data
        items = data.known[sample_uniformly(options.seed, first, count, options.batch_size, len(data.known))]
        chosen = items.ravel()
        rows, goals = data.starts[chosen], None if data.goals is None else data.goals[chosen]
        now = data.take(rows, (fields.OBSERVATION, fields.ACTION), goals)
        following = data.take(rows + 1, (fields.OBSERVATION,), goals)
        num_samples = self._next_choices.shape[1]
        samples = np.random.default_rng([options.seed, first]).integers(num_samples, size=len(rows))
        split: Any = partial(map_structure, lambda column: column.reshape(count, -1, *column.shape[1:]))
        return PolicyTransitions(
            split(now[fields.OBSERVATION]),
            split(self._policy.to_choice(now[fields.ACTION])),
            data.rewards[items].astype(np.float32),
            data.env_discounts[items].astype(np.float32),
            split(following[fields.OBSERVATION]),
            split(self._next_choices[chosen, samples]),
            np.moveaxis(self._counts[:, items], 0, 1),
        )

    def _estimate_values(self, rows: np.ndarray, goals: np.ndarray | None = None) -> np.ndarray:
        """Returns V(s), float64 [K, rows], the mean over the actions that the policy may take."""
        choices = self._choose(rows, goals)

        def compute(steps: dict[str, Nest], first: int) -> np.ndarray:
            some = np.moveaxis(choices[first : first + ROWS_PER_CALL], 1, 0)
            values = [self._fitted.values(steps[fields.OBSERVATION], choice) for choice in some]
            return np.mean(values, axis=0, dtype=np.float64).T

        return self._data.map(compute, rows, (fields.OBSERVATION,), goals).T

    @cached_property
    def _q_values(self) -> np.ndarray:
        """Q(s, a) of the data's actions, float64 [K, R]."""

        def compute(steps: dict[str, Nest], first: int) -> np.ndarray:
            choice = self._policy.to_choice(steps[fields.ACTION])
            return self._fitted.values(steps[fields.OBSERVATION], choice).T.astype(np.float64)

        return self._data.map(compute, self._data.starts, (fields.OBSERVATION, fields.ACTION)).T

    def _find_warnings(self, result: PolicyEstimate) -> list[str]:
        """Returns sentences about what may be wrong with an estimate."""
        warnings, estimator, num = [], ESTIMATORS[result.method], result.num_episodes
        options = self._settings.fqe
        num_time_constants = options.num_updates * options.target_update_rate * (1 - self._data.gamma)
        size, ends = result.effective_sample_size, np.cumsum(self._data.lengths) - 1
        num_unknown = len(self._data.starts) - len(self._data.known)
        num_truncated = int((self._data.env_discounts[ends] > 0).sum()) + num_unknown
        low, high = self._data.returns.min(), self._data.returns.max()
        if size is not None and size < _MIN_EPISODES:
            warnings.append(
                f"the effective sample size is {size:,.1f} of {num:,} episodes, so neither the estimate nor its "
                "interval is reliable; use fqe, or a policy closer to the data"
            )
        if num < _MIN_EPISODES:
            warnings.append(f"there are only {num} episodes; bootstrap intervals of so few are too narrow")
        if self._data.is_trained_on:
            warnings.append("the policy was trained on these episodes, which favours it; use others")
        if num_truncated and not estimator.uses_values:
            warnings.append(
                f"{num_truncated:,} of {num:,} episodes are truncated, and the estimate does not include later rewards"
            )
        if estimator.uses_values and options.ensemble_size == 1:
            warnings.append("a single Q-function was fitted; the interval does not include the uncertainty of the fit")
        if estimator.uses_values and num_time_constants < _MIN_TIME_CONSTANTS:
            warnings.append(
                f"the Q-functions may not have converged: the updates are {num_time_constants:.1f} time "
                f"constants, of which {_MIN_TIME_CONSTANTS} are enough; make more updates"
            )
        if estimator.uses_values and num_unknown:
            warnings.append(
                f"{num_unknown:,} of {num:,} episodes are truncated without a last observation; their last transitions "
                "are left out of the fit"
            )
        if self._policy.has_state:
            warnings.append(
                "the actions of the policy depend on earlier steps, which are those of the data here, not its own"
            )
        if estimator.uses_values and not low <= result.estimate <= high:
            warnings.append(
                "the estimate is an extrapolation: the discounted returns from all steps of the data are "
                f"{low:,.4g} to {high:,.4g}"
            )
        return warnings
