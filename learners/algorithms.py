"""The algorithms: what each one is called, learns from and was published with. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlds2reverb._text import suggest

#: Hyperparameters that a training run determines, and the options of the run that they are taken from.
RUN_HYPERPARAMETERS = {"discount": "gamma", "num_updates": "steps", "seed": "seed"}


@dataclass(frozen=True)
class Algorithm:
    """One algorithm.

    Attributes:
      name: name in `make_agent`, `train` and on the command line.
      agent: module in `rlds2reverb.learners.agents` and class of the agent, such as "iql:IQLAgent".
      summary: full name.
      source: the paper.
      actions: kind of actions.
      items: kind of items: single transitions, or trajectories of two steps, which contain the next action as well.
      batch_size: published number of items per batch.
      has_td_errors: whether updates return TD errors, which prioritized sampling requires.
      normalizes_observations: whether the published results use normalised observations.
      defaults: hyperparameters whose defaults differ from those of the class.
    """

    name: str
    agent: str
    summary: str
    source: str
    actions: Literal["continuous", "discrete"]
    items: Literal["transitions", "trajectories"] = "transitions"
    batch_size: int = 256
    has_td_errors: bool = True
    normalizes_observations: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def class_name(self) -> str:
        """The name of the agent's class, which is also its name in gin files."""
        return self.agent.partition(":")[2]


_ATARI_BATCH_SIZE = 32  # Mnih et al. (2015), extended data table 1, for all three.

#: All algorithms by name.
ALGORITHMS: dict[str, Algorithm] = {
    each.name: each
    for each in (
        Algorithm(
            "awac",
            "awac:AWACAgent",
            "advantage-weighted actor-critic",
            "Nair, Gupta, Dalal & Levine 2020, arXiv:2006.09359",
            "continuous",
            batch_size=1024,  # Appendix of the paper.
        ),
        Algorithm(
            "bc",
            "bc:BCAgent",
            "behavioural cloning",
            "Fujimoto & Gu 2021 (baseline), arXiv:2106.06860",
            "continuous",
            has_td_errors=False,
        ),
        Algorithm(
            "cql",
            "cql:CQLAgent",
            "conservative Q-learning",
            "Kumar, Zhou, Tucker & Levine 2020, arXiv:2006.04779",
            "continuous",
        ),
        Algorithm(
            "discrete_bc",
            "discrete_bc:DiscreteBCAgent",
            "behavioural cloning of discrete actions",
            "Pomerleau 1991, doi:10.1162/neco.1991.3.1.88",
            "discrete",
            has_td_errors=False,
        ),
        Algorithm(
            "discrete_cql",
            "dqn:DQNAgent",
            "conservative Q-learning on DQN",
            "Kumar, Zhou, Tucker & Levine 2020, arXiv:2006.04779",
            "discrete",
            batch_size=_ATARI_BATCH_SIZE,
            # Adam's settings are those of the authors' batch_rl/multi_head/quantile_agent.py; the weight is the one in
            # their README for 10 % of the data.
            defaults={"conservative_weight": 1.0, "learning_rate": 5e-5, "adam_epsilon": 3.125e-4},
        ),
        Algorithm(
            "double_dqn",
            "dqn:DQNAgent",
            "double deep Q-learning",
            "van Hasselt, Guez & Silver 2016, arXiv:1509.06461",
            "discrete",
            batch_size=_ATARI_BATCH_SIZE,
            defaults={"double": True},
        ),
        Algorithm(
            "dqn",
            "dqn:DQNAgent",
            "deep Q-learning",
            "Mnih et al. 2015, doi:10.1038/nature14236",
            "discrete",
            batch_size=_ATARI_BATCH_SIZE,
        ),
        Algorithm(
            "iql",
            "iql:IQLAgent",
            "implicit Q-learning",
            "Kostrikov, Nair & Levine 2021, arXiv:2110.06169",
            "continuous",
        ),
        Algorithm(
            "rebrac",
            "rebrac:ReBRACAgent",
            "TD3+BC with penalties in actor and critics",
            "Tarasov et al. 2023, arXiv:2305.09836",
            "continuous",
            items="trajectories",
            batch_size=1024,  # Appendix of the paper, on hyperparameters.
        ),
        Algorithm(
            "td3",
            "td3_bc:TD3BCAgent",
            "twin delayed DDPG",
            "Fujimoto, van Hoof & Meger 2018, arXiv:1802.09477",
            "continuous",
            defaults={"alpha": None},
        ),
        Algorithm(
            "td3_bc",
            "td3_bc:TD3BCAgent",
            "TD3 with behavioural cloning",
            "Fujimoto & Gu 2021, arXiv:2106.06860",
            "continuous",
            normalizes_observations=True,  # Section 5 of the paper.
        ),
    )
}


def get_algorithm(name: str) -> Algorithm:
    """Returns an algorithm by its name.

    Raises:
      ValueError: If there is no such algorithm.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"algo must be one of {', '.join(ALGORITHMS)}, got {name!r}{suggest(str(name), ALGORITHMS)}")
    return ALGORITHMS[name]
