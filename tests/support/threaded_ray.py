"""A stand-in for Ray whose actors are threads of this process, for fast tests of the code that calls it."""

import sys
import threading
from concurrent import futures
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace


class RayTaskError(Exception):
    """The error of a method of an actor."""

    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class RayActorError(Exception):
    """The end of an actor."""


class _Actor:
    def __init__(self, made, options):
        self.made, self.options, self.is_killed, self._lock = made, options, False, threading.Lock()
        self.runs = []

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: self._start(name, arguments))

    def _start(self, name, arguments):
        future = futures.Future()

        def call():
            try:
                if self.is_killed:
                    raise RayActorError("killed")
                with nullcontext() if name == "run" else self._lock:
                    future.set_result(getattr(self.made, name)(*arguments))
            except Exception as error:
                future.set_exception(error if isinstance(error, RayActorError) else RayTaskError(error))

        threading.Thread(target=call, daemon=True).start()
        self.runs += [future] if name == "run" else []
        return future


class ThreadedRay(ModuleType):
    """The functions of `ray` that training on a cluster calls.

    Attributes:
      num_cpus: the CPUs of the cluster.
      options: the options with which it was started; None if it is not running.
      group: the reserved resources, and the strategy.
      actors: all actors.
    """

    def __init__(self, num_cpus):
        super().__init__("ray")
        self.num_cpus, self.options, self.group, self.actors = num_cpus, None, None, []
        self.exceptions = SimpleNamespace(
            RayTaskError=RayTaskError, RayActorError=RayActorError, GetTimeoutError=TimeoutError
        )
        self.util = SimpleNamespace(
            get_node_ip_address=lambda: "localhost",
            placement_group=self._reserve,
            remove_placement_group=lambda group: setattr(self, "group", None),
            scheduling_strategies=SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, bundle: bundle),
        )

    def install(self, monkeypatch):
        """Takes the place of Ray in a test."""
        names = ("ray.util", "ray.util.scheduling_strategies", "ray.util.state", "ray.util.state.common")
        for name, module in {"ray": self, **{name: ModuleType(name) for name in names}}.items():
            monkeypatch.setitem(sys.modules, name, module)

    def _reserve(self, bundles, strategy):
        self.group = bundles, strategy
        return SimpleNamespace(wait=lambda secs: True)

    def init(self, **options):
        self.options = options

    def is_initialized(self):
        return self.options is not None

    def shutdown(self):
        """Waits for the threads, which end because the killed coordinator no longer answers."""
        self.options = None
        assert not futures.wait([run for actor in self.actors for run in actor.runs], 60).not_done

    def cluster_resources(self):
        return {"CPU": self.num_cpus}

    available_resources = cluster_resources

    def remote(self, kind):
        def create(options, *arguments, **named):
            self.actors.append(_Actor(kind(*arguments, **named), options))
            return self.actors[-1]

        return SimpleNamespace(
            options=lambda **options: SimpleNamespace(remote=lambda *a, **named: create(options, *a, **named))
        )

    def get(self, future, timeout=None):
        return future.result(timeout)

    def wait(self, runs, num_returns, timeout):
        done = futures.wait(runs, timeout).done
        return [run for run in runs if run in done], [run for run in runs if run not in done]

    def kill(self, actor):
        actor.is_killed = True
