from .adam import Adam as Adam
from .awac import AWACAgent as AWACAgent
from .bc import BCAgent as BCAgent
from .cal_ql import CalQLAgent as CalQLAgent
from .chunk_policy import (
    ChunkPolicy as ChunkPolicy,
    execute_chunks as execute_chunks,
    make_chunk_spec as make_chunk_spec,
)
from .cql import CQLAgent as CQLAgent, conservative_penalty as conservative_penalty
from .crl import CRLAgent as CRLAgent
from .custom_networks import (
    CustomNetwork as CustomNetwork,
    FullyConnected as FullyConnected,
    make_network as make_network,
)
from .decision_transformer import (
    DecisionTransformerAgent as DecisionTransformerAgent,
    DecisionTransformerPolicy as DecisionTransformerPolicy,
)
from .discrete_actors import (
    CategoricalActor as CategoricalActor,
    ConstrainedActor as ConstrainedActor,
    EpsilonGreedyActor as EpsilonGreedyActor,
)
from .discrete_bc import DiscreteBCAgent as DiscreteBCAgent
from .discrete_bcq import DiscreteBCQAgent as DiscreteBCQAgent
from .discrete_iql import DiscreteIQLAgent as DiscreteIQLAgent
from .dqn import DQNAgent as DQNAgent
from .fql import BestFlowActor as BestFlowActor, FQLAgent as FQLAgent, OneStepFlowActor as OneStepFlowActor
from .gcbc import GCBCAgent as GCBCAgent
from .gciql import GCIQLAgent as GCIQLAgent
from .gcivl import GCIVLAgent as GCIVLAgent
from .gin_settings import GinSettings as GinSettings, read_gin as read_gin
from .goal_agent import GoalAgent as GoalAgent
from .hiql import HIQLAgent as HIQLAgent
from .hyperparameters import Option as Option, Range as Range
from .image_networks import ImageEncoder as ImageEncoder, ImageNetwork as ImageNetwork
from .iql import IQLAgent as IQLAgent
from .network_inputs import NetworkInputs as NetworkInputs
from .networks import (
    MLP as MLP,
    GaussianActor as GaussianActor,
    Network as Network,
    TanhActor as TanhActor,
    critic_values as critic_values,
    values_and_action_gradients as values_and_action_gradients,
)
from .offline_agent import OfflineAgent as OfflineAgent, TransitionBatch as TransitionBatch
from .policies import ActorPolicy as ActorPolicy
from .rebrac import ReBRACAgent as ReBRACAgent
from .registry import (
    get_agent_class as get_agent_class,
    get_hyperparameters as get_hyperparameters,
    make_agent as make_agent,
    parse_hyperparameter as parse_hyperparameter,
    resolve_hyperparameters as resolve_hyperparameters,
)
from .sac import SACAgent as SACAgent, gradient_similarity as gradient_similarity
from .spot import SPOTAgent as SPOTAgent
from .squashed_gaussian import SquashedGaussianActor as SquashedGaussianActor
from .td3_bc import TD3BCAgent as TD3BCAgent
from .temperature import Temperature as Temperature
from .unit_conversions import (
    BoundedActions as BoundedActions,
    DiscreteActions as DiscreteActions,
    Observations as Observations,
)
from .xql import XQLAgent as XQLAgent
