"""The options of a training run on a cluster that are not those of training itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from rlds2reverb.learners.option_declarations import Range

from ..option_fields import check_options, make_option

_cluster = partial(make_option, "Cluster")


@dataclass(frozen=True)
class ClusterConfig:
    """The distribution of a training run over a Ray cluster; see `TrainingConfig` for the entries below.

    Attributes:
      address: Address of an existing Ray cluster, or auto for the one that this machine belongs to.
      num_collectors: Number of processes that collect, each in num_envs environments; only with an online phase.
      num_shards: Number of replay servers, which share the data.
      num_cpus: CPUs to reserve for each process.
      learner_gpus: GPUs to reserve for the learner.
      checkpoint_secs: Seconds between two checkpoints of a replay server. What was collected since then is lost if it
        is killed.
      lead_steps: Number of environment steps that the collectors may be ahead of the learner.

    Raises:
      ValueError: If an option is out of its range or of the wrong type.
    """

    address: str | None = _cluster(None, "a new one on this machine", metavar="ADDRESS")
    num_collectors: Annotated[int, Range(1)] = _cluster(2)
    num_shards: Annotated[int, Range(1)] = _cluster(1)
    num_cpus: Annotated[float, Range(0, 1024)] | None = _cluster(
        None, "1, or less if the cluster has too few", metavar="N"
    )
    learner_gpus: Annotated[float, Range(0, 64)] = _cluster(0.0, metavar="N")
    checkpoint_secs: Annotated[float, Range(0, 86_400)] = _cluster(60.0, metavar="SECS")
    lead_steps: Annotated[int, Range(1)] = _cluster(1_000)

    def __post_init__(self) -> None:
        check_options(self)
