"""The rule: public functions, classes and methods keep the names and defaults of their arguments, unless a change is meant.

`python tests/rules/test_recorded_signatures.py` records them in `public_signatures.txt`.
"""

import importlib
import inspect
import re
from pathlib import Path
from types import FunctionType

from rlds2reverb.learners.agents import get_hyperparameters
from rlds2reverb.learners.algorithms import ALGORITHMS

RECORDED = Path(__file__).parent / "public_signatures.txt"
PACKAGES = "rlds2reverb adders datasets reverb.sampling beam replay learners learners.hooks learners.agents envs training training.cluster"


def list_signatures():
    """Returns a line for each public name and method of the packages, and each algorithm: its arguments with defaults."""
    lines = {}
    for package in PACKAGES.split():
        module = importlib.import_module(package if package == "rlds2reverb" else f"rlds2reverb.{package}")
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if not callable(value) or value in lines:
                continue
            lines[value] = f"{package}.{name}{describe(value)}"
            if inspect.isclass(value):
                kinds = FunctionType, classmethod, staticmethod
                methods = [key for key, part in vars(value).items() if key[0] != "_" and isinstance(part, kinds)]
                lines |= {(value, key): f"  .{key}{describe(getattr(value, key))}" for key in sorted(methods)}
    for algo in ALGORITHMS:
        options = [f"{option.name}={option.default!r}" for option in get_hyperparameters(algo).values()]
        lines[algo] = f"{algo}({', '.join(options)})"
    return "".join(f"{line}\n" for line in lines.values())


def describe(function):
    """Returns the arguments of a function with their defaults, without annotations."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    shown = inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters])
    return re.sub(r" at 0x[0-9a-f]+", "", str(shown))


def test_arguments_and_defaults_are_the_recorded_ones():
    assert list_signatures() == RECORDED.read_text()


if __name__ == "__main__":
    RECORDED.write_text(list_signatures())
