"""Declarations of the options of configurations: dataclass fields with a type, a range, a default and a text."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, get_type_hints

from rlds2reverb.learners.option_declarations import REQUIRED, Option, declare, read_descriptions

#: Headings of the options of the online phase and of evaluation.
ONLINE, EVALUATION = "Online phase", "Evaluation"


@dataclass(frozen=True)
class TrainingOption(Option):
    """The declaration of an option of `TrainingConfig` or `ClusterConfig`.

    Attributes:
      group: heading in `--help`.
      metavar: placeholder of the value in `--help`.
      default_text: description of the default if the value itself does not say enough.
      values_text: description of the values if they are not declared by a type.
      identifies: whether runs with different values are different runs, so that one cannot continue the other.
      needs_dataset: whether the option has a meaning only for a dataset that is read, not for what an agent collects.
      is_of_learner: whether the learner of a cluster is created with it.
    """

    group: str
    metavar: str | None = None
    default_text: str | None = None
    values_text: str = "text"
    identifies: bool = False
    needs_dataset: bool = False
    is_of_learner: bool = False

    def describe_default(self) -> str:
        """Returns a description of the default."""
        default = self.default
        if self.default_text is not None or default is REQUIRED:
            return self.default_text or "required"
        if default is False or default == ():
            return "no" if default is False else "none"
        return f"{default:,}" if isinstance(default, int) else str(default)

    def describe_values(self) -> str:
        """Returns a description of the allowed values."""
        if self.type != "any":
            return self.describe()
        return f"{self.values_text} or None" if self.default is None else self.values_text


def make_option(group: str, default: Any = MISSING, default_text: str | None = None, **declaration: Any) -> Any:
    """Returns the field of an option; see `TrainingOption` for what it declares besides the annotation."""
    return field(default=default, metadata={"group": group, "default_text": default_text, **declaration})


@cache
def declare_fields(config: Any) -> dict[str, TrainingOption]:
    """Returns the declarations of the fields of a dataclass by name; the descriptions are those of its docstring."""
    hints, descriptions = get_type_hints(config, include_extras=True), read_descriptions(config)
    declared = {}
    for attribute in fields(config):
        name, default = attribute.name, REQUIRED if attribute.default is MISSING else attribute.default
        option = declare(name, default, hints[name], descriptions.get(name, ""))
        declared[name] = TrainingOption(**vars(option), **attribute.metadata)
    return declared


def check_options(config: Any) -> None:
    """Makes the values of a frozen dataclass Python's own types.

    Raises:
      ValueError: If a value is not of its type or not in its range.
    """
    for name, option in declare_fields(config.__class__).items():
        object.__setattr__(config, name, option.check(getattr(config, name)))
