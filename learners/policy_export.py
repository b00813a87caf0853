"""Export of policies as SavedModels."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tf_agents.policies import policy_saver, tf_policy
from tf_agents.policies.policy_saver import PolicySaver
from tf_agents.specs import tensor_spec

from rlds2reverb.policies.saved_policies import VALUES
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.types.nest_paths import make_ascii_names
from rlds2reverb.types.specs import leaves

from .agents.policies import WrappedPolicy

_PREVIOUS = "previous"


def export_policy(
    policy: tf_policy.TFPolicy,
    path: str | Path,
    *,
    train_step: tf.Variable | None = None,
    estimate_values: Callable[[Any, Any], dict[str, tf.Tensor]] | None = None,
) -> Path:
    """Writes a policy as a SavedModel that loads without this package, and returns its path.

    Args:
      policy: the policy, for batches of any size.
      path: directory of the SavedModel; replaced if it exists.
      train_step: number of train steps, saved with the policy.
      estimate_values: function to save with the policy, see `OfflineAgent.estimate_values`; None for none.
        Those of chunks and of histories are not saved, because the policy's actions and observations are single ones.

    Raises:
      StorageFullError: If the disk is full; an earlier SavedModel is kept.
    """
    path = Path(path)
    with _replacing(path) as partial, hide_warnings(), _name_inputs():
        saver = PolicySaver(policy, batch_size=None, train_step=train_step)
        if estimate_values is not None and not isinstance(policy, WrappedPolicy):
            _add_values(saver, policy, estimate_values)
        saver.save(str(partial))
    return path


def copy_policy(source: str | Path, path: str | Path) -> Path:
    """Copies a SavedModel, as `export_policy` would write it, and returns the path of the copy."""
    path = Path(path)
    with _replacing(path) as partial:
        shutil.copytree(source, partial)
    return path


@contextmanager
def _name_inputs() -> Iterator[None]:
    """Makes PolicySaver name inputs and outputs so that TensorFlow can save all of them; their nests do not change."""
    rename = policy_saver.rename_spec_with_nest_paths

    def rename_to_ascii(spec: Any) -> Any:
        names = iter(make_ascii_names([path for path, _ in leaves(spec)]))
        return tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype, next(names)), spec)

    policy_saver.rename_spec_with_nest_paths = rename_to_ascii
    try:
        yield
    finally:
        policy_saver.rename_spec_with_nest_paths = rename


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields the path at which to write a SavedModel, which then replaces the one at `path`."""
    restore_policy(path)
    partial, previous = (path.with_name(f"{path.name}.{suffix}") for suffix in ("partial", _PREVIOUS))
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(previous, ignore_errors=True)
    with full_disk_as_error(path):
        yield partial
    if path.exists():
        path.rename(previous)
    partial.rename(path)
    shutil.rmtree(previous, ignore_errors=True)


def _add_values(saver: PolicySaver, policy: tf_policy.TFPolicy, estimate_values: Callable[[Any, Any], Any]) -> None:
    """Adds a function of a pair of batches, observations and actions; nothing if it returns no estimates."""
    specs = tensor_spec.add_outer_dim((policy.time_step_spec.observation, policy.action_spec))
    function = tf.function(lambda pair: estimate_values(*pair), autograph=False)
    concrete = function.get_concrete_function(specs)
    if concrete.structured_outputs:
        saver.register_concrete_function(VALUES, function)
        # TensorFlow lists a function's variables in random order, which determines their names in the SavedModel.
        places = {id(handle): place for place, handle in enumerate(concrete.captured_inputs)}
        variables = sorted(concrete.variables, key=lambda variable: places.get(id(variable.handle), len(places)))
        setattr(saver._policy, f"{VALUES}__variables_0", variables)


def restore_policy(path: Path) -> None:
    """Restores the SavedModel that a killed process was about to replace."""
    previous = path.with_name(f"{path.name}.{_PREVIOUS}")
    if not path.exists() and previous.exists():
        previous.rename(path)


@contextmanager
def hide_warnings() -> Iterator[None]:
    """Hides the warnings of Keras and PolicySaver about metrics and functions, which a policy does not have."""
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    for logger in loggers:
        logger.addFilter(is_error)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_error)
