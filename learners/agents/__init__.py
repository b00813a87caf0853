"""Agents for offline and online learning, each a `tf_agents.agents.TFAgent`; `make_agent` creates one by name.

Networks are fully connected, with convolutions in front for images (`ImageNetwork`), or the user's own (`OwnNetwork`).
Continuous actions are vectors, and discrete actions are single integers. Every `train` accepts `weights`, and returns
the TD error of each item in `LossInfo.extra["td_error"]` if the algorithm has a critic.
"""

from rlds2reverb._keras import require_keras_2

from .adam import Adam
from .awac import AWACAgent
from .bc import BCAgent
from .cql import CQLAgent, conservative_penalty
from .discrete_actors import CategoricalActor, EpsilonGreedyActor
from .discrete_bc import DiscreteBCAgent
from .dqn import DQNAgent
from .gin_settings import GinSettings, read_gin
from .hyperparameters import Hyperparameter, Range
from .image_networks import ImageEncoder, ImageNetwork
from .iql import IQLAgent
from .network_inputs import NetworkInputs
from .networks import MLP, GaussianActor, Network, TanhActor, critic_values
from .offline_agent import Batch, OfflineAgent
from .own_networks import FullyConnected, OwnNetwork, make_network
from .policies import ActorPolicy
from .rebrac import ReBRACAgent
from .registry import (
    get_agent_class,
    get_hyperparameters,
    make_agent,
    parse_hyperparameter,
    resolve_hyperparameters,
)
from .sac import SACAgent
from .spaces import BoundedActions, DiscreteActions, Observations
from .squashed_gaussian import SquashedGaussianActor
from .td3_bc import TD3BCAgent
from .temperature import Temperature

require_keras_2()

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
    "FullyConnected",
    "GaussianActor",
    "GinSettings",
    "Hyperparameter",
    "IQLAgent",
    "ImageEncoder",
    "ImageNetwork",
    "Network",
    "NetworkInputs",
    "Observations",
    "OfflineAgent",
    "OwnNetwork",
    "Range",
    "ReBRACAgent",
    "SACAgent",
    "SquashedGaussianActor",
    "TD3BCAgent",
    "TanhActor",
    "Temperature",
    "conservative_penalty",
    "critic_values",
    "get_agent_class",
    "get_hyperparameters",
    "make_agent",
    "make_network",
    "parse_hyperparameter",
    "read_gin",
    "resolve_hyperparameters",
]
