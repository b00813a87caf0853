"""Agents for offline data, each a `tf_agents.agents.TFAgent`.

Every `train` takes `weights` and gives the TD error of each item in `LossInfo.extra["td_error"]` where the algorithm
has a critic. `make_agent` makes one by name.
"""

from .adam import Adam
from .awac import AWACAgent
from .bc import BCAgent
from .cql import CQLAgent, conservative_penalty
from .discrete_actors import CategoricalActor, EpsilonGreedyActor
from .discrete_bc import DiscreteBCAgent
from .dqn import DQNAgent
from .iql import IQLAgent
from .networks import MLP, GaussianActor, TanhActor, critic_values
from .offline_agent import Batch, OfflineAgent
from .policies import ActorPolicy
from .rebrac import ReBRACAgent
from .registry import AGENTS, hyperparameters, is_bound, make_agent, resolved
from .spaces import BoundedActions, DiscreteActions, Observations
from .squashed_gaussian import SquashedGaussianActor
from .td3_bc import TD3BCAgent

__all__ = [
    "AGENTS",
    "MLP",
    "AWACAgent",
    "ActorPolicy",
    "Adam",
    "BCAgent",
    "Batch",
    "BoundedActions",
    "CQLAgent",
    "CategoricalActor",
    "DQNAgent",
    "DiscreteActions",
    "DiscreteBCAgent",
    "EpsilonGreedyActor",
    "GaussianActor",
    "IQLAgent",
    "Observations",
    "OfflineAgent",
    "ReBRACAgent",
    "SquashedGaussianActor",
    "TD3BCAgent",
    "TanhActor",
    "conservative_penalty",
    "critic_values",
    "hyperparameters",
    "is_bound",
    "make_agent",
    "resolved",
]
