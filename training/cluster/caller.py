"""Calls of the coordinator from other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlds2reverb.errors import ServerUnavailableError

#: Ray repeats a call while the coordinator is restarted, which takes longer than TensorFlow's import.
_CALL_SECS = 180.0


#: A function `(method, *arguments)` that calls a method of the coordinator, and returns its result.
Caller = Callable[..., Any]


def call_actor(actor: Any, method: str, *arguments: Any) -> Any:
    """Returns the result of a method of an actor, given its handle.

    Raises:
      ServerUnavailableError: If the actor is gone, or does not answer in time.
    """
    import ray

    try:
        return ray.get(getattr(actor, method).remote(*arguments), timeout=_CALL_SECS)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
        raise ServerUnavailableError(
            f"the coordinator did not answer within {_CALL_SECS:g} s ({type(error).__name__})"
        ) from error


def own_host() -> str:
    """Returns the address of this machine in the cluster; 'localhost' outside of one."""
    import ray

    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else "localhost"
