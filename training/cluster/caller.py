"""Calls of the coordinator from other processes."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

from rlds2reverb.errors import ServerUnavailableError

#: Ray repeats a call while the coordinator is restarted, which takes longer than TensorFlow's import.
_CALL_SECS = 180.0


class Caller(Protocol):
    """A function that calls a method of the coordinator."""

    def __call__(self, method: str, *arguments: Any) -> Any:
        """Returns the result of the method."""


class RayCaller:
    """Calls the methods of a named actor, and waits for the results."""

    def __init__(self, name: str, *, timeout_secs: float = _CALL_SECS):
        """Sets the name of the actor, and the maximum time to wait for each result."""
        self._name, self._timeout_secs = name, timeout_secs

    @cached_property
    def _actor(self) -> Any:
        import ray

        return ray.get_actor(self._name)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for other processes, which look up the actor themselves."""
        return {"_name": self._name, "_timeout_secs": self._timeout_secs}

    def __call__(self, method: str, *arguments: Any) -> Any:
        """Returns the result of a method.

        Raises:
          ServerUnavailableError: If the actor is gone, or does not answer in time.
        """
        import ray

        try:
            return ray.get(getattr(self._actor, method).remote(*arguments), timeout=self._timeout_secs)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
            raise ServerUnavailableError(
                f"the coordinator did not answer within {self._timeout_secs:g} s ({type(error).__name__})"
            ) from error


def own_host() -> str:
    """Returns the address of this machine in the cluster; 'localhost' outside of one."""
    import ray

    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else "localhost"
