"""The classic-control, toy-text and MuJoCo environments that are installed with Gymnasium."""

import gymnasium

_MODULES = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text", "gymnasium.envs.mujoco")
#: Requires MuJoCo 2. The entry points of older versions only raise errors.
_UNSUPPORTED = {"Pusher-v4"}


def find_installed():
    """Returns the ids of the environments."""
    return sorted(
        name
        for name, spec in gymnasium.registry.items()
        if str(spec.entry_point).startswith(_MODULES) and name not in _UNSUPPORTED
    )
