"""Training on a Ray cluster: places the processes, shows their progress, and stops them."""

from __future__ import annotations

import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rlds2reverb import errors, ingest
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.learners.runs import Run, load_run
from rlds2reverb.reverb.server.commits import CommitLog
from rlds2reverb.reverb.writing.report import IngestWarning
from rlds2reverb.system.closing import Closing
from rlds2reverb.system.installation import install_command
from rlds2reverb.system.signals import stop_on_signal

from ..config import TrainingConfig
from ..dataset import StepData
from ..directories import find_run_dir, require_single_run
from ..progress import Progress, raise_if_interrupted
from ..sources import fit_config
from ..training import require_same_run
from .actors import CollectorActor, EvaluatorActor, LearnerActor, ReplayActor
from .caller import call_actor
from .cluster_config import ClusterConfig
from .coordinator import Coordinator
from .reverb_comm_learner import OFFLINE_TABLE
from .run_preparation import prepare
from .status import format_status

_START_SECS, _STOP_SECS, _EVALUATION_SECS, _POLL_SECS, _LINE_SECS = 180.0, 120.0, 1800.0, 0.5, 10.0
_REPLAY, _STATE = "replay", "coordinator.json"


class ClusterTraining(Closing):
    """A training run whose parts are processes of a Ray cluster.

        with ClusterTraining(source, config, "runs/sac", ClusterConfig(num_collectors=8)) as training:
            run = training.run()

    The directory of the run must be on a file system that all machines share. Ray restarts a process that is killed, on
    another machine if its own is lost, and it continues from what is in the directory: the learner from its last
    checkpoint, a replay server from its own. The same call continues a run that was stopped, or killed as a whole: then
    all replay servers start from the checkpoints that were committed together.
    """

    def __init__(
        self,
        source: Any,
        config: TrainingConfig,
        run_dir: str | Path,
        cluster: ClusterConfig | None = None,
        *,
        progress: Progress | None = None,
    ):
        """Reads the data on this machine, and connects to the cluster or starts one.

        Args:
          source: the data: any dataset of `load`, the addresses of servers, or None to learn only from what is
            collected.
          config: the options of training; those of the online phase apply to the collectors.
          run_dir: directory of the run, created if missing.
          cluster: how the run is distributed; None for the defaults.
          progress: prints notes and progress; None prints nothing.

        Raises:
          ImportError: If Ray cannot be used.
          ConnectionError: If there is no cluster at the address.
          ValueError: If an option requires a single process.
          Exception: See `Training`.
        """
        self._ray = ray = import_ray()
        self.config = config = fit_config(source, config)
        self.cluster = cluster or ClusterConfig()
        self.run_dir = find_run_dir(run_dir).resolve()
        require_single_run(self.run_dir)
        self._progress = progress or Progress(quiet=True)
        self._progress.num_iterations = config.num_updates
        self._has_collectors, self._num_added = False, 0
        self._runs: dict[str, Any] = {}
        self._actors: dict[str, Any] = {}
        self._placed: dict[str, int] = {}
        self._call: Callable[..., Any] = _raise_not_started
        self._parts = prepare(source, self.config, self.run_dir, self.cluster.num_shards, self._progress)
        document = self._parts.document
        key = document["environment"], document["environment_spec"]
        require_same_run(self.run_dir, self.config, key, document["data"]["fingerprint"])
        with RunDirectory(self.run_dir) as run:
            run.write_config(self._parts.document)
        with ExitStack() as stack:
            stack.callback(self._progress.close)
            if not ray.is_initialized():
                self._connect()
                stack.callback(ray.shutdown)
            stack.callback(self._kill)
            self._resources = stack.pop_all()

    def close(self) -> None:
        """Ends all processes of the run, and the cluster if it was started for the run. Idempotent."""
        self._resources.close()

    def run(self) -> Run:
        """Trains until all updates are done, and returns the run; see `Training.run`.

        SIGTERM and SIGINT make all processes save what they have, and end the run early.

        Raises:
          KeyboardInterrupt: After saving, if SIGINT (Ctrl-C) ended the run; not in a notebook.
          RuntimeError: If a process fails repeatedly, or the cluster has too few resources.
          TrainingDivergedError, CheckpointError: As `Training`.
        """
        signals: list[str] = []
        with stop_on_signal(signals.append):
            self._start_replay()
            self._start_others()
            self._watch(signals)
            self._stop(signals[0] if signals else "complete")
        task = self.task_state()
        if task["state"] == "failed":
            raise _make_error(task["reason"])
        run = load_run(self.run_dir)
        if run.best_return is not None:
            run.plot(self.run_dir / "curve.png")
        if signals:
            self._progress.note(f"stopped by {signals[0]} after {task['step']:,} updates; run it again to continue")
            raise_if_interrupted(signals[0], f"{self.run_dir} is saved; the same training continues it")
        return run

    # --- State

    def status(self) -> dict[str, Any]:
        """Returns the progress; see `Coordinator.status`. Raises `RuntimeError` before `run` has started."""
        return dict(self._call("status"))

    def task_state(self) -> dict[str, Any]:
        """Returns the state of the learner's task; see `Coordinator.task_state`."""
        return dict(self._call("task_state", self._parts.task["name"]))

    @property
    def actors(self) -> dict[str, Any]:
        """The handles of the running Ray actors by name: 'coordinator', 'replay_0', 'learner', 'collector_0', ..."""
        return dict(self._actors)

    # --- Collectors come and go, in calls from other threads while `run` trains

    def add_collector(self) -> str:
        """Starts another collector, and returns its name. On a cluster without room, it starts once there is some.

        Raises:
          RuntimeError: If `run` has not started the collectors yet, or the run has no online phase; or if there is no
            room in the cluster that was started for the run.
        """
        self._require_collectors()
        name = f"collector_{self.cluster.num_collectors + self._num_added}"
        if not self._bundles and self._ray.available_resources().get("CPU", 0.0) < self._num_cpus:
            sentence = f"the cluster has no room for another process with {self._num_cpus:g} CPUs"
            if self.cluster.address is None:
                raise RuntimeError(f"{sentence}; remove a collector first, or use fewer CPUs per process")
            self._progress.warn(f"{sentence}; {name} starts once it has")
        self._num_added += 1
        self._start_collector(name)
        return name

    def remove_collector(self, name: str) -> None:
        """Ends a collector; what it has collected stays in the replay.

        Raises:
          RuntimeError: As `add_collector`.
          ValueError: If there is no such collector.
        """
        self._require_collectors()
        if not name.startswith("collector_") or name not in self._actors:
            raise ValueError(f"there is no collector {name!r}; there are {', '.join(sorted(self._actors))}")
        self._runs.pop(name, None)  # Otherwise `run` may see its end, and raise an error.
        self._ray.kill(self._actors.pop(name))
        if name in self._placed:
            self._bundles.append(self._placed.pop(name))

    def _require_collectors(self) -> None:
        if not self._has_collectors:
            reason = "is not running" if self.config.online_steps else "has no online phase"
            raise RuntimeError(f"collectors can only be added or removed while `run` trains, but this run {reason}")

    # --- Start

    def _connect(self) -> None:
        options: dict[str, Any] = {"address": self.cluster.address}
        if self.cluster.address is None:
            options = {"address": "local", "include_dashboard": False}
        try:
            self._ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except ConnectionError as error:
            raise ServerUnavailableError(
                f"there is no Ray cluster at {self.cluster.address!r}; start one with `ray start --head`"
            ) from error

    def _start_replay(self) -> None:
        """Starts the coordinator and the replay servers, and writes the dataset to them unless they have it."""
        parts, cluster = self._parts, self.cluster
        with self._progress.activity("starting the replay servers"):
            self._place()
            replay_root = self.run_dir / _REPLAY
            for note in CommitLog(replay_root, cluster.num_shards).return_to_newest(verify=True):
                self._progress.warn(note)
            options: dict[str, Any] = {"replay_root": replay_root, "checkpoint_secs": cluster.checkpoint_secs}
            options |= {"lead_steps": cluster.lead_steps, "num_shards": cluster.num_shards}
            self._start("coordinator", Coordinator, self.run_dir / _STATE, self.config, **options)
            self._call = partial(call_actor, self._actors["coordinator"])
            for shard in range(cluster.num_shards):
                arguments = (self._call, shard, parts.tables, parts.signature, replay_root)
                self._start(f"replay_{shard}", ReplayActor, *arguments)
            self._wait(lambda: len(self._call("shards")) == cluster.num_shards, "the replay servers to start")
        if parts.dataset is not None:
            with self._progress.activity("writing the dataset to the replay servers"):
                self._fill(parts.dataset)

    def _fill(self, dataset: StepData) -> None:
        """Writes the dataset to the replay servers. Items that they have already are stored once."""
        num_items = sum(len(dataset.adder(episode)) for episode in dataset.episodes)
        if self.status()["replay_size"].get(OFFLINE_TABLE) == num_items:
            return
        servers = list(self._call("shards").values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IngestWarning)
            ingest(dataset.episodes, servers, OFFLINE_TABLE, adder=dataset.adder, layout="packed", resume=False)
        request = uuid.uuid4().hex
        self._wait(lambda: self._call("commit_replay", request), "the replay servers to write checkpoints")

    def _start_others(self) -> None:
        parts = self._parts
        self._call("submit", parts.task)
        self._start("learner", LearnerActor, self._call, parts.replay)
        if parts.evaluator is not None:
            self._start("evaluator", EvaluatorActor, self._call, parts.task["policy"], parts.evaluator, self.run_dir)
        if self.config.online_steps:
            for number in range(self.cluster.num_collectors):
                self._start_collector(f"collector_{number}")
            self._has_collectors = True

    def _start_collector(self, name: str) -> None:
        parts = self._parts
        assert parts.evaluator is not None  # An online phase requires an environment.
        options = {"num_envs": self.config.num_envs, "seed": self.config.seed}
        arguments = (self._call, name, parts.task["policy"], parts.evaluator["make_env"], parts.convert)
        self._start(name, CollectorActor, *arguments, **options)

    def _place(self) -> None:
        """Reserves resources for all processes, on different machines if possible."""
        ray, cluster = self._ray, self.cluster
        num_collectors = cluster.num_collectors if self.config.online_steps else 0
        num_actors = 3 + cluster.num_shards + num_collectors
        total = ray.cluster_resources().get("CPU", 1.0)
        share = min(1.0, round(total / num_actors - 0.005, 2))
        self._num_cpus = share if cluster.num_cpus is None else cluster.num_cpus
        # Ray rejects empty resources, and bundles without any.
        bundles = [{"CPU": self._num_cpus} if self._num_cpus else {} for _ in range(num_actors)]
        if cluster.learner_gpus:
            bundles[1 + cluster.num_shards]["GPU"] = cluster.learner_gpus
        #: The free bundles, in the order in which the processes are started. Added collectors may find none.
        self._bundles = deque(range(num_actors))
        self._group = ray.util.placement_group([bundle or {"CPU": 0.001} for bundle in bundles], strategy="SPREAD")
        # A cluster of several machines may still grow.
        is_too_small = cluster.address is None and self._num_cpus * num_actors > total
        if is_too_small or not self._group.wait(_START_SECS):
            raise RuntimeError(
                f"the cluster has no room for {num_actors} processes with {self._num_cpus:g} CPUs each; it has "
                f"{total:g} CPUs. Use fewer collectors, shards or CPUs per process, or add machines"
            )

    def _start(self, name: str, kind: type, *arguments: Any, **options: Any) -> None:
        """Starts an actor in the next bundle, or anywhere if all are taken, and its method `run` if it has one."""
        ray = self._ray
        resources: dict[str, Any] = {"num_cpus": self._num_cpus}
        if kind is LearnerActor and self.cluster.learner_gpus:
            resources["num_gpus"] = self.cluster.learner_gpus
        if self._bundles:
            bundle = self._placed[name] = self._bundles.popleft()
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, bundle)
            resources["scheduling_strategy"] = strategy
        actor = ray.remote(kind).options(
            max_restarts=-1,
            max_task_retries=-1,
            runtime_env={"env_vars": {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}},
            **resources,
        )
        self._actors[name] = actor.remote(*arguments, **options)
        if hasattr(kind, "run"):
            self._runs[name] = self._actors[name].run.remote()

    # --- Watch and stop

    def _watch(self, signals: Sequence[str]) -> None:
        """Shows the progress until the task has ended and its last policy is evaluated, or a signal arrives."""
        shown, ended = 0.0, None
        while not signals:
            self._require_running()
            task, status = self.task_state(), self.status()  # In this order, so that the last policy is not missed.
            if time.monotonic() - shown > (_POLL_SECS if self._progress.is_live else _LINE_SECS):
                shown = time.monotonic()
                self._progress.show(format_status(status, self.config))
            if task["state"] == "failed":
                return
            if task["state"] in ("complete", "stopped"):
                ended = ended or time.monotonic()
                is_evaluated = status["evaluation"].get("step", -1) >= status["policy_step"]
                if self._parts.evaluator is None or is_evaluated or time.monotonic() - ended > _EVALUATION_SECS:
                    self._progress.show(format_status(status, self.config))
                    return
            time.sleep(_POLL_SECS)

    def _require_running(self) -> None:
        """Raises the error of a process that has failed; Ray restarts those that were killed."""
        ray, runs = self._ray, dict(self._runs)
        done, _ = ray.wait(list(runs.values()), num_returns=len(runs), timeout=0)
        for name, run in runs.items():
            if run in done and name in self._runs:  # It may have been removed in the meantime.
                try:
                    ray.get(run)
                except ray.exceptions.RayTaskError as error:
                    raise getattr(error, "cause", None) or error from None
                except ray.exceptions.RayActorError as error:
                    reason = str(error).strip().splitlines()[-1]
                    raise RuntimeError(f"the process {name!r} cannot be started: {reason}") from error

    def _wait(self, is_ready: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _START_SECS
        while not is_ready():
            self._require_running()
            if time.monotonic() > until:
                raise ServerUnavailableError(f"waited {_START_SECS:g} s for {what}")
            time.sleep(_POLL_SECS)

    def _stop(self, reason: str) -> None:
        """Makes all processes save what they have, and waits until they have ended."""
        ray, until = self._ray, time.monotonic() + _STOP_SECS
        self._has_collectors = False
        with self._progress.activity("stopping"):
            while time.monotonic() < until:
                self._call("stop", reason)  # The coordinator may have been restarted since the first call.
                runs = list(self._runs.values())
                _, running = ray.wait(runs, num_returns=len(runs), timeout=_POLL_SECS)
                self._require_running()  # Raises if the last checkpoint failed.
                if not running:
                    return
        self._progress.warn("some processes did not end in time and are killed")

    def _kill(self) -> None:
        """Kills all processes, and releases their resources."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        if hasattr(self, "_group"):
            self._ray.util.remove_placement_group(self._group)


def _raise_not_started(*_: Any) -> None:
    raise RuntimeError("the run has not started yet; call run first")


def import_ray() -> Any:
    """Returns the module; raises `ImportError` with advice if it is missing or cannot be used."""
    try:
        import ray
        import ray.util.scheduling_strategies
        import ray.util.state.common
    except ImportError as error:
        if "ydantic" in str(error):
            raise ImportError(
                "Ray requires pydantic 2 or none at all, but pydantic 1 is installed, as wandb and mlflow require; "
                "use an environment without them: pip uninstall pydantic wandb mlflow-skinny"
            ) from error
        raise ImportError(
            f"training on a cluster requires Ray ({error}); run {install_command('ray')}, or use an environment of its "
            "own (see docs/cluster.md)"
        ) from error
    return ray


def _make_error(reason: str) -> Exception:
    """Returns the error of a task, with its own type if it is one of this package's."""
    name, _, message = reason.partition(": ")
    kind = getattr(errors, name, None)
    bases = kind.__mro__ if isinstance(kind, type) else ()
    if errors.Rlds2ReverbError in bases and {ValueError, ArithmeticError}.intersection(bases):
        return kind(message)  # type: ignore[misc]
    return RuntimeError(f"the learner failed: {reason}")
