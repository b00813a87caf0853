"""Off-policy evaluation: the value of policies, estimated from data without an environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash

from rlds2reverb import Transitions, __version__
from rlds2reverb.datasets.steps.item_index import sample_uniformly
from rlds2reverb.errors import ArgumentError, SourceError
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.unit_conversions import Observations
from rlds2reverb.learners.checkpoints import Checkpoints
from rlds2reverb.learners.dynamics_model import DynamicsModel, can_model, to_observation
from rlds2reverb.learners.ensemble_fit import EnsembleFit, FitOptions, PolicyTransitions
from rlds2reverb.learners.fitted_q import FittedQ
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
from .dataset import StepData
from .evaluated_policies import EvaluatedPolicy
from .evaluation_data import ROWS_PER_CALL, EvaluationData, EvaluationSource
from .model_rollouts import MIN_SPREAD, Rollouts, roll_out
from .policy_estimates import PolicyEstimate, load_estimate, order_estimates
from .progress import Progress, format_time_left

#: Value of `behaviour` for probabilities that behavioural cloning estimates, and prefix of a field of probabilities.
CLONED, _PROBABILITIES = "cloned", "log:"
#: Number of transitions that are read at a time.
NUM_READ = 16_384
#: Effective sample size, and number of episodes, below which an estimate tells nothing.
_MIN_EPISODES = 10
#: Part of the range of the data's returns that an interval may span, share of targets that may be clipped, and squared
#: error of a model, relative to the variance of the changes, above which an estimate tells nothing.
_MAX_WIDTH, _MAX_CLIPPED, _MAX_ERROR = 0.5, 0.01, 0.5
#: Number of updates after which models differ where they extrapolate.
MIN_MODEL_UPDATES = 5_000
#: Maximum number of first states that a policy is simulated from.
_NUM_FIRSTS = 100
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
      fit: options of the fits; their seed is that of the bootstrap as well.

    Raises:
      ValueError: If a number is out of range.
    """

    gamma: float | None = None
    behaviour: str = CLONED
    held_out: bool | None = None
    confidence: float = 0.9
    num_resamples: int = 2000
    fit: FitOptions = field(default_factory=FitOptions)

    def __post_init__(self) -> None:
        if self.gamma is not None:
            require_number("gamma", self.gamma, 0, 1)
        require_number("confidence", self.confidence, 0.01, 0.999)
        require_count("num_resamples", self.num_resamples, 10)


def evaluate_offline(
    policy: Any, source: Any, method: str | None = None, *, progress: bool = True, **settings: Any
) -> PolicyEstimate:
    """Estimates the discounted return of a policy from data that other policies recorded, without an environment.

        print(evaluate_offline("runs/iql", "hopper_medium-v2.hdf5"))

    The `verdict` of the estimate says whether the data tell the return of the policy. The estimate refers to the first
    states of the episodes, and to the rewards of the data, also if the run transforms them. See
    docs/off_policy_evaluation.md for what each method assumes. Nothing follows a terminal state. At a truncated end the
    importance samplers count nothing more, so they estimate the return of episodes of the same lengths; the other
    methods estimate what would have followed.

    The estimate of a policy with goals is that of reaching random states of the data from the first states, with the
    reward -1 for each step before. Policies with a state, such as Decision Transformer's, are asked for their actions
    along the episodes of the data.

    The estimate of a policy in a directory is saved in its `estimates/`, and so is every half minute of a fit. The same
    call uses them, with a note, if policy, data, settings and version are the same by content.

    Args:
      policy: a `Run` (its last policy), the directory of a run or of a SavedModel, a TF-Agents `TFPolicy`, or a
        function that returns the actions [B, ...] for a batch of observations. The policies that `train` writes take
        the best or most likely action, whose probability is 1.
      source: a dataset; see `load`.
      method: 'model' for rollouts in learned models; 'fqe' for fitted Q evaluation; 'is', 'pdis', 'wis' and 'wpdis' for
        (weighted, per-decision) importance sampling; 'dr' and 'wdr' for (weighted) doubly robust estimation. None for
        'model' if observations are vectors of real numbers, actions are continuous, and the policy has neither goals
        nor a state; otherwise for 'fqe'.
      progress: whether to show progress on stderr or in the notebook.
      **settings: attributes of `OffPolicySettings`.

    Raises:
      ArgumentError: If the method requires probabilities that the policy does not have, or a setting is invalid.
      SourceError: If the data are tables, or do not contain a field.
      SpecMismatchError: If the policy does not match the data.
      TrainingDivergedError: If fitted Q evaluation diverges.
      Exception: See `load_policy`, and `open_data` for the data.
    """
    return rank_policies([policy], source, method, progress=progress, **settings)[0]


def rank_policies(
    policies: Iterable[Any], source: Any, method: str | None = None, *, progress: bool = True, **settings: Any
) -> list[PolicyEstimate]:
    """Estimates the discounted returns of several policies, and orders them by what they reach at least.

    The estimates are returned from the highest to the lowest lower end of their intervals, so that a policy whose
    return is uncertain does not come first because it may be high.

        for result in rank_policies(["runs/iql", "runs/td3_bc"], "held_out.hdf5"):
            print(result.policy, result.estimate, result.interval)

    Args:
      policies: policies; see `evaluate_offline`.
      source: a dataset, best one that no policy was trained on.
      method: see `evaluate_offline`; None for 'fqe' if 'model' does not apply to all of the policies.
      progress: see `evaluate_offline`.
      **settings: attributes of `OffPolicySettings`.

    Raises:
      ValueError: If there are no policies.
      Exception: See `evaluate_offline`.
    """
    methods = [] if method is None else [method]
    estimates = evaluate_policies(list(policies), source, methods, Progress(quiet=not progress), **settings)
    if not estimates:
        raise ValueError("policies must contain at least one policy")
    return order_estimates(estimates)


def evaluate_policies(
    policies: Sequence[Any],
    source: Any,
    methods: Sequence[str] = (),
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
    opened, models = EvaluationSource(source), dict[Any, tuple[DynamicsModel, float]]()
    evaluations = [
        _Evaluation(policy, opened.open(policy, field_names), chosen, progress, models)
        for policy in map(opened.load, policies)
    ]
    methods = methods or ["model" if all(evaluation.can_model for evaluation in evaluations) else "fqe"]
    for evaluation in evaluations:
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

    def __init__(
        self,
        policy: EvaluatedPolicy,
        dataset: StepData,
        settings: OffPolicySettings,
        progress: Progress,
        models: dict[Any, tuple[DynamicsModel, float]],
    ):
        """Fits nothing yet; `models` are those of all policies, by the data and actions that they are fitted to."""
        self._policy, self._settings, self._progress, self._models = policy, settings, progress, models
        self._data = EvaluationData(
            policy, dataset, gamma=settings.gamma, held_out=settings.held_out, seed=settings.fit.seed
        )

    @property
    def can_model(self) -> bool:
        """True if the policy is simulated in models by default."""
        policy = self._policy
        is_plain = not (policy.has_goals or policy.has_state or policy.is_discrete)
        return is_plain and can_model(self._data.dataset.time_step_spec.observation)

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
        if (estimator.uses_ratios or method == "model") and self._policy.has_goals:
            raise ArgumentError(f"must be 'fqe' for {self._policy.name}, whose goals are not those of the data",
                                about="method")  # fmt: skip
        weights = importance_weights(self._log_ratios, estimator) if estimator.uses_ratios else None
        lowest, terms, highest = self._make_terms(method)
        interval = partial(
            estimate_with_interval,
            np.ones((terms.shape[1], 1)) if weights is None else weights,
            is_self_normalized=estimator.is_self_normalized,
            confidence=settings.confidence,
            num_resamples=settings.num_resamples,
            seed=settings.fit.seed,
        )
        value, (low, high) = interval(terms)
        if lowest is not terms:
            low, high = interval(lowest)[1][0], interval(highest)[1][1]
        fit = self._fitted if estimator.uses_values else self._model[0] if method == "model" else None
        result = PolicyEstimate(
            self._policy.name,
            method,
            value,
            (low, high),
            settings.confidence,
            self._data.gamma,
            self._data.dataset.name,
            len(self._data.lengths),
            self._data.is_held_out,
            float(self._data.first_returns.mean()),
            float(self._data.first_returns.max()),
            settings.behaviour if estimator.uses_ratios else None,
            None if weights is None else effective_sample_size(weights[:, -1]),
            None if fit is None or fit.losses[1] < 0 else float(fit.losses[1]),
        )
        return replace(result, doubts=tuple(self._find_doubts(result)), warnings=tuple(self._find_warnings(result)))

    def _make_terms(self, method: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the terms of a method, float64 [K, N, T + 1], between their lowest and highest possible values.

        T is 0 for values of first states.
        """
        if method == "model":
            known, unknown = (numbers[..., None] for numbers in self._rollouts[:2])
            low, mean, high = self._data.possible_returns
            return known + low * unknown, known + mean * unknown, known + high * unknown
        rewards = pad(self._data.rewards, self._data.lengths)
        discounts = pad(self._data.gamma * self._data.env_discounts, self._data.lengths)
        if method == "fqe":
            terms = self._estimate_values(self._data.firsts, self._data.first_goals)[..., None]
        elif not ESTIMATORS[method].uses_values:
            terms = estimator_terms(rewards, discounts)[None]
        else:
            values = pad(self._estimate_values(np.arange(self._data.num_steps.sum())), self._data.lengths + 1)
            terms = estimator_terms(rewards, discounts, pad(self._q_values, self._data.lengths), values)
        return terms, terms, terms

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
        options, moments = self._settings.fit, self._moments
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
        self,
        title: str,
        trackables: dict[str, Any],
        update: Callable[[int, int], None],
        size: int,
        losses: tf.Variable | None = None,
    ) -> None:
        """Makes all updates of a fit, from its checkpoint on if there is one, and shows the progress.

        Args:
          title: name of the fit.
          trackables: contents of a checkpoint.
          update: function that makes the updates from a number to another.
          size: maximum number of updates to make at a time.
          losses: losses to show; see `EnsembleFit`.
        """
        total, first = self._settings.fit.num_updates, 0
        checkpoints = (
            None if self._folder is None else Checkpoints(self._folder / title, trackables, keep_checkpoints=1)
        )
        if checkpoints is not None and (saved := checkpoints.open()) is not None:
            checkpoints.restore(saved)
            first = saved.step

        def describe() -> str:
            if losses is None:
                return ""
            return f"loss {losses[0]:.4g}   held out {losses[1]:.4g}   "

        began = saved_at = shown_at = time.monotonic()
        for done in range(first, total, size):
            last = min(done + size, total)
            update(done, last)
            now = time.monotonic()
            if now > shown_at + (_LIVE_SECS if self._progress.is_live else LINE_SECS):
                left = format_time_left((now - began) / (last - first) * (total - last))
                self._progress.show(f"{self._policy.name}: {title}   {last:>9,} of {total:,}   {describe()}{left}")
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
        seed = self._settings.fit.seed
        return self._data.map(
            lambda steps, first: self._policy.choose(steps[fields.OBSERVATION], seed + first),
            rows,
            (fields.OBSERVATION,),
            goals,
        )

    @cached_property
    def _choices_along_episodes(self) -> np.ndarray:
        """The choices of a policy with a state in all steps, float32 [N, 1, C]."""
        return self._policy.choose_along(self._data.take, self._data.num_steps, self._settings.fit.seed)

    @cached_property
    def _fitted(self) -> FittedQ:
        """The Q-functions of the policy."""
        spread = float(self._data.returns.std())
        fitted = FittedQ(
            self._observations,
            self._policy.actions,
            self._settings.fit,
            gamma=self._data.gamma,
            offset=float(self._data.returns.mean()),
            scale=spread if spread > 1e-6 else 1.0,
            bounds=(self._bound(min(self._data.rewards.min(), 0.0)), self._bound(max(self._data.rewards.max(), 0.0))),
        )
        self._fit(fitted, self._next_choices)
        return fitted

    @property
    def _observations(self) -> Observations:
        return Observations(self._data.dataset.time_step_spec.observation, self._moments.mean, self._moments.std)

    def _fit(self, fit: EnsembleFit, next_choices: np.ndarray | None) -> None:
        """Makes all updates of a fit."""
        size = max(NUM_READ // self._settings.fit.batch_size, 1)

        def update(first: int, last: int) -> None:
            fit.fit(self._read_batches(first, last - first, next_choices), first)

        self._make_updates(fit.title, fit.trackables, update, size, fit.losses)

    @cached_property
    def _counts(self) -> np.ndarray:
        """The number of times that each transition occurs in the sample of each member, float32 [K, R]."""
        options, num = self._settings.fit, len(self._data.lengths)
        counts = np.ones((1, num)) if options.ensemble_size == 1 else np.random.default_rng(options.seed).multinomial(
            num, np.full(num, 1 / num), options.ensemble_size
        )  # fmt: skip
        return np.repeat(counts, self._data.lengths, axis=1).astype(np.float32)

    def _bound(self, reward: float) -> float:
        """Returns the value of receiving a reward forever."""
        return reward * (1 / (1 - self._data.gamma) if self._data.gamma < 1 else np.inf) if reward else 0.0

    def _read_batches(self, first: int, count: int, next_choices: np.ndarray | None) -> PolicyTransitions:
        """Returns random transitions; see `EnsembleFit.fit`."""
        options, data = self._settings.fit, self._data
        if not len(data.known):
            raise SourceError(
                "the observation after every transition is missing, so that nothing can be fitted; see last_step"
            )
        items = data.known[sample_uniformly(options.seed, first, count, options.batch_size, len(data.known))]
        chosen = items.ravel()
        rows, goals = data.starts[chosen], None if data.goals is None else data.goals[chosen]
        now = data.take(rows, (fields.OBSERVATION, fields.ACTION), goals)
        following = data.take(rows + 1, (fields.OBSERVATION,), goals)
        choices = self._policy.to_choice(now[fields.ACTION])
        if next_choices is None:
            following_choices = choices
        else:
            samples = np.random.default_rng([options.seed, first]).integers(next_choices.shape[1], size=len(rows))
            following_choices = next_choices[chosen, samples]
        split: Any = partial(map_structure, lambda column: column.reshape(count, -1, *column.shape[1:]))
        return PolicyTransitions(
            split(now[fields.OBSERVATION]),
            split(choices),
            data.rewards[items].astype(np.float32),
            data.env_discounts[items].astype(np.float32),
            split(following[fields.OBSERVATION]),
            split(following_choices),
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

    # --- Models

    @cached_property
    def _model(self) -> tuple[DynamicsModel, float]:
        """Models of what follows the actions of the data, and how far they are apart there."""
        data, spec = self._data, self._data.dataset.time_step_spec.observation
        if self._policy.has_state or not can_model(spec):
            raise ArgumentError(
                f"must be 'fqe' for {self._policy.name}: models require observations that are vectors of real numbers, "
                "and a policy without a state", about="method")  # fmt: skip
        key = (id(data.dataset), repr(self._policy.actions.spec), data.is_used.tobytes())
        if key not in self._models:
            sample = self._read_batches(0, max(NUM_READ // self._settings.fit.batch_size, 1), None)
            flat: Any = partial(map_structure, lambda column: column.reshape(-1, *column.shape[2:]))
            before, after = (self._observations(flat(part)).numpy() for part in (sample[0], sample[4]))
            found = np.column_stack([after - before, sample.reward.ravel()])
            ranges = np.column_stack([np.maximum(before, after), sample.reward.ravel()])
            low = np.append(np.minimum(before, after).min(axis=0), data.rewards.min())
            model = DynamicsModel(
                self._observations,
                self._policy.actions,
                self._settings.fit,
                scales=(found.mean(axis=0), found.std(axis=0) + 1e-4),
                bounds=(low, np.append(ranges[:, :-1].max(axis=0), data.rewards.max())),
            )
            self._fit(model, None)
            spread = model.predict(before[:ROWS_PER_CALL], flat(sample.choice)[:ROWS_PER_CALL]).spread
            self._models[key] = model, float(np.quantile(spread, 0.99))
        return self._models[key]

    @cached_property
    def _rollouts(self) -> Rollouts:
        """Rollouts of the policy from first states of the data."""
        (model, spread), data, spec = self._model, self._data, self._data.dataset.time_step_spec.observation
        chosen = np.unique(np.linspace(0, len(data.firsts) - 1, _NUM_FIRSTS).round().astype(int))
        firsts = data.take(data.firsts[chosen], (fields.OBSERVATION,))[fields.OBSERVATION]

        def act(states: np.ndarray, step: int) -> np.ndarray:
            observation = to_observation(spec, states, self._moments.mean, self._moments.std)
            return self._policy.act(observation, self._settings.fit.seed + step)

        return roll_out(
            model,
            act,
            self._observations(firsts).numpy(),
            gamma=data.gamma,
            limit=max(MIN_SPREAD, spread),
            longest=int(data.lengths.max()),
        )

    # --- Verdicts

    def _find_doubts(self, result: PolicyEstimate) -> list[str]:
        """Returns sentences about why the data do not tell the return of the policy."""
        doubts, estimator, options = [], ESTIMATORS[result.method], self._settings.fit
        (low, high), (worst, _, best), num = result.interval, self._data.possible_returns, result.num_episodes
        size, span = result.effective_sample_size, best - worst
        if num < _MIN_EPISODES:
            doubts.append(f"there are only {num} episodes; bootstrap intervals of so few are too narrow")
        if size is not None and size < _MIN_EPISODES:
            doubts.append(
                f"the effective sample size is {size:,.1f} of {num:,} episodes, so neither the estimate nor its "
                "interval is reliable; use model or fqe, or a policy closer to the data"
            )
        if result.method == "model":
            has_left, num_steps = self._rollouts.has_left, self._rollouts.num_steps
            if high - low > _MAX_WIDTH * span and has_left.mean() > 0.5:
                doubts.append(
                    f"the policy leaves the data, after {np.median(num_steps[has_left]):,.0f} steps in the median of "
                    f"{has_left.mean():.0%} of the simulated episodes; what follows is unknown"
                )
            if options.num_updates < MIN_MODEL_UPDATES:
                doubts.append(
                    f"the models may not have converged: they made {options.num_updates:,} updates, of which "
                    f"{MIN_MODEL_UPDATES:,} are enough"
                )
            if result.held_out_loss is not None and result.held_out_loss > _MAX_ERROR:
                doubts.append(
                    f"the models do not predict what follows an action: their squared error is "
                    f"{result.held_out_loss:.2f} of the variance on episodes that they have not learned from; use fqe"
                )
        if high - low > _MAX_WIDTH * span and not doubts:
            doubts.append(
                f"the interval spans {(high - low) / span:.0%} of the range of the data's discounted returns, "
                f"{worst:,.4g} to {best:,.4g}"
            )
        if not estimator.uses_values:
            return doubts
        num_time_constants = options.num_updates * options.target_update_rate * (1 - self._data.gamma)
        if num_time_constants < _MIN_TIME_CONSTANTS:
            doubts.append(
                f"the Q-functions may not have converged: the updates are {num_time_constants:.1f} time "
                f"constants, of which {_MIN_TIME_CONSTANTS} are enough; make more updates"
            )
        clipped = self._fitted.clipped_share(self._read_batches(0, 1, self._next_choices))
        if clipped > _MAX_CLIPPED:
            doubts.append(f"{clipped:.0%} of the targets are values that the rewards do not permit, and are clipped")
        if (distance := self._measure_distance()) > 1:
            doubts.append(
                f"the actions of the policy are {distance:.1f} times as far from the data's actions in the same states "
                "as those of other states"
            )
        if result.estimate > best or result.estimate < worst:
            where, end = ("above", best) if result.estimate > best else ("below", worst)
            doubts.append(f"the estimate is {where} every discounted return in the data, {end:,.4g}: an extrapolation")
        return doubts

    def _measure_distance(self) -> float:
        """Returns the mean squared distance of the policy's choices from the data's, relative to that of any others."""
        rows = np.random.default_rng(self._settings.fit.seed).permutation(len(self._data.starts))[:ROWS_PER_CALL]
        steps = self._data.take(self._data.starts[rows], (fields.ACTION,))
        goals = None if self._data.goals is None else self._data.goals[rows]
        taken = self._policy.to_choice(steps[fields.ACTION])
        chosen = self._choose(self._data.starts[rows], goals).mean(axis=1)
        return float(np.square(chosen - taken).mean() / max(np.square(np.roll(taken, 1, axis=0) - taken).mean(), 1e-9))

    def _find_warnings(self, result: PolicyEstimate) -> list[str]:
        """Returns sentences about what the estimate does not include."""
        warnings, estimator, num = [], ESTIMATORS[result.method], result.num_episodes
        num_unknown = len(self._data.starts) - len(self._data.known)
        ends = np.cumsum(self._data.lengths) - 1
        num_truncated = int((self._data.env_discounts[ends] > 0).sum()) + num_unknown
        is_fitted = estimator.uses_values or result.method == "model"
        if self._data.is_trained_on:
            warnings.append("the policy was trained on these episodes, which favours it; use others")
        if num_truncated and not is_fitted:
            warnings.append(
                f"{num_truncated:,} of {num:,} episodes are truncated, and the estimate does not include later rewards"
            )
        if is_fitted and self._settings.fit.ensemble_size == 1:
            warnings.append("a single network was fitted; the interval does not include the uncertainty of the fit")
        if is_fitted and num_unknown:
            warnings.append(
                f"{num_unknown:,} of {num:,} episodes are truncated without a last observation; their last transitions "
                "are left out of the fit"
            )
        if self._policy.has_state:
            warnings.append(
                "the actions of the policy depend on earlier steps, which are those of the data here, not its own"
            )
        return warnings
