"""The options of a training run on a cluster that are not those of training itself."""

from __future__ import annotations

from dataclasses import dataclass

from rlds2reverb._arguments import require_count, require_number


@dataclass(frozen=True)
class ClusterConfig:
    """The distribution of a training run over a Ray cluster.

    Attributes:
      num_collectors: number of collectors; each steps `TrainingConfig.num_envs` environments. Ignored without an online
        phase.
      num_shards: number of replay servers, which share the data.
      num_learners: number of learners, which share every batch and make the same updates; each samples its own share of
        the replay servers if there are enough.
      address: address of an existing Ray cluster, or 'auto' for the one that this machine belongs to; None to start one
        on this machine.
      num_cpus: CPUs that Ray reserves for each process; None for 1, or less if the cluster has too few.
      learner_gpus: GPUs that Ray reserves for each learner.
      checkpoint_secs: seconds between two checkpoints of a replay server; what it has collected since the last one is
        lost if it is killed.
      lead_steps: number of environment steps that the collectors may be ahead of the learner.
    """

    num_collectors: int = 2
    num_shards: int = 1
    num_learners: int = 1
    address: str | None = None
    num_cpus: float | None = None
    learner_gpus: float = 0.0
    checkpoint_secs: float = 60.0
    lead_steps: int = 1_000

    def __post_init__(self) -> None:
        require_count("num_collectors", self.num_collectors, 0)
        require_count("num_shards", self.num_shards)
        require_count("num_learners", self.num_learners)
        require_count("lead_steps", self.lead_steps)
        require_number("learner_gpus", self.learner_gpus, 0, 64)
        require_number("checkpoint_secs", self.checkpoint_secs, 0, 86_400)
        if self.num_cpus is not None:
            require_number("num_cpus", self.num_cpus, 0, 1024)
