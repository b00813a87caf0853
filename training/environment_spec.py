"""Descriptions of environments as JSON values, which identify them, and from which they are made again."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.envs.suite_gym import find_spec, import_gymnasium
from rlds2reverb.errors import ArgumentError, Message
from rlds2reverb.system.code_fingerprints import describe_reference, fingerprint_code, is_installed
from rlds2reverb.system.references import is_importable, resolve_reference

#: Keys of the descriptions of values that JSON does not have.
_ARRAY, _TUPLE, _FUNCTION, _PARTIAL, _OBJECT = "$array", "$tuple", "$function", "$partial", "$object"
_FIELDS = ("id", "entry_point", "kwargs", "max_episode_steps")
_WRAPPERS, _CODE = "additional_wrappers", "code"
_CANNOT_IMPORT = Message(" cannot be imported; pass the id of an environment, or a function that creates it", env=...)


def describe_env(env: Any) -> dict[str, Any]:
    """Returns a description of what makes an environment.

    That of an environment that is registered with Gymnasium, or of an `EnvSpec`, has its `id`, `entry_point`, `kwargs`,
    `max_episode_steps` and `additional_wrappers`. That of a function has a reference to it. What is not part of an
    installed package has a `code`; see `fingerprint_code`.

    Args:
      env: id of a registered environment, `gymnasium.EnvSpec`, `gymnasium.Env`, function, or a description.

    Raises:
      ImportError, ValueError: If there is no environment of this id.
    """
    if isinstance(env, Mapping):
        return dict(env)
    spec = find_spec(env) if isinstance(env, str) else getattr(env, "spec", env)
    if not hasattr(spec, "max_episode_steps"):
        encoded = _encode(env)
        return encoded if isinstance(encoded, dict) else {_OBJECT: describe_reference(env)}
    wrappers = [
        {
            "name": wrapper.name,
            "entry_point": wrapper.entry_point,
            "kwargs": _encode(wrapper.kwargs),
            **_describe_code(wrapper.entry_point),
        }
        for wrapper in spec.additional_wrappers
    ]
    described = {name: _encode(getattr(spec, name)) for name in _FIELDS}
    return {**described, _WRAPPERS: wrappers, **_describe_code(spec.entry_point)}


def _describe_code(entry_point: Any) -> dict[str, str]:
    """Returns the fingerprint of the code that a string refers to, unless it belongs to an installed package."""
    if not isinstance(entry_point, str) or is_installed(entry_point.partition(":")[0]):
        return {}
    return {_CODE: fingerprint_code(resolve_reference("env", entry_point))}


def _require_same_code(reference: str, now: str | None, described: str | None) -> None:
    if described not in (None, now):
        sentence = f"the environment cannot be made again, because {reference} has changed; pass it to use it"
        raise ArgumentError(sentence, env=...)


def restore_env(description: Mapping[str, Any]) -> Any:
    """Returns what makes the described environment: a `gymnasium.EnvSpec`, or a function.

    What a description does not contain is that of the registered environment. What it names is imported when the
    environment is created, and functions immediately: it must come from the user or from one of the user's runs, never
    from a dataset.

    Raises:
      ValueError: If it contains a function or an object that cannot be imported, or a function that has changed.
    """
    if "id" not in description:
        return _decode(dict(description))
    unknown = description.keys() - {*_FIELDS, _WRAPPERS, _CODE}
    if unknown:
        raise ValueError(f"a description of an environment must contain only {', '.join(_FIELDS)} and {_WRAPPERS}, got "
                         f"{sorted(unknown)}")  # fmt: skip
    registration = import_gymnasium().envs.registration
    values = {name: _decode(value) for name, value in description.items() if name in _FIELDS}
    missing = [name for name in _FIELDS if name not in values]
    registered = find_spec(values["id"]) if missing else None
    values |= {name: getattr(registered, name) for name in missing}
    if isinstance(values["entry_point"], str) and not is_importable(values["entry_point"]):
        raise ValueError(
            f"the environment {values['id']} cannot be made again, because {values['entry_point']}" + _CANNOT_IMPORT
        )
    for part in (description, *description.get(_WRAPPERS, ())):
        if part.get(_CODE) is not None:
            _require_same_code(part["entry_point"], _describe_code(part["entry_point"]).get(_CODE), part[_CODE])
    wrappers = [
        registration.WrapperSpec(wrapper["name"], wrapper["entry_point"], _decode(wrapper["kwargs"]))
        for wrapper in description.get(_WRAPPERS, ())
    ]
    return registration.EnvSpec(**values, additional_wrappers=tuple(wrappers))


def _encode(value: Any) -> Any:
    """Returns a value as JSON values, from which `_decode` restores it unless it cannot be imported."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(item) for item in value]}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "fiubU":
        return {_ARRAY: value.tolist(), "dtype": value.dtype.str}
    if isinstance(value, functools.partial):
        return {_PARTIAL: _encode([value.func, value.args, value.keywords])}
    if callable(value):
        return {_FUNCTION: describe_reference(value), _CODE: fingerprint_code(value)}
    return {_OBJECT: describe_reference(value), _CODE: fingerprint_code(value)}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if _TUPLE in value:
        return tuple(_decode(item) for item in value[_TUPLE])
    if _PARTIAL in value:
        function, arguments, keywords = _decode(value[_PARTIAL])
        return functools.partial(function, *arguments, **keywords)
    if _ARRAY in value:
        return np.array(value[_ARRAY], value["dtype"])[()]
    if _FUNCTION not in value and _OBJECT not in value:
        return {key: _decode(item) for key, item in value.items()}
    reference = value.get(_FUNCTION) or value[_OBJECT]
    if _FUNCTION not in value or not is_importable(reference):
        raise ValueError(f"the environment cannot be made again, because {reference}" + _CANNOT_IMPORT)
    function = resolve_reference("env", reference)
    _require_same_code(reference, fingerprint_code(function), value[_CODE])
    return function
