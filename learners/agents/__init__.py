"""Agents for offline reinforcement learning, each a `tf_agents.agents.TFAgent`; `make_agent` creates one by name.

All networks are fully connected: they see an image as a vector of its pixels, and integers as numbers (`Observations`).
Continuous actions are vectors, and discrete actions are single integers. Every `train` accepts `weights`, and returns
the TD error of each item in `LossInfo.extra["td_error"]` if the algorithm has a critic.
"""

from .adam import Adam
from .awac import AWACAgent
from .bc import BCAgent
from .cql import CQLAgent, conservative_penalty
from .discrete_actors import CategoricalActor, EpsilonGreedyActor
from .discrete_bc import DiscreteBCAgent
from .dqn import DQNAgent
from .gin_settings import GinSettings, read_gin
from .hyperparameters import Hyperparameter, Range
from .iql import IQLAgent
from .networks import MLP, GaussianActor, TanhActor, critic_values
from .offline_agent import Batch, OfflineAgent
from .policies import ActorPolicy
from .rebrac import ReBRACAgent
from .registry import (
    get_agent_class,
    get_hyperparameters,
    make_agent,
    parse_hyperparameter,
    resolve_hyperparameters,
)
from .spaces import BoundedActions, DiscreteActions, Observations
from .squashed_gaussian import SquashedGaussianActor
from .td3_bc import TD3BCAgent

__all__ = [
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
    "GinSettings",
    "Hyperparameter",
    "IQLAgent",
    "Observations",
    "OfflineAgent",
    "Range",
    "ReBRACAgent",
    "SquashedGaussianActor",
    "TD3BCAgent",
    "TanhActor",
    "conservative_penalty",
    "critic_values",
    "get_agent_class",
    "get_hyperparameters",
    "make_agent",
    "parse_hyperparameter",
    "read_gin",
    "resolve_hyperparameters",
]
