from . import suite_dm_control as suite_dm_control, suite_gym as suite_gym
from ._env_process import EnvironmentFailedError as EnvironmentFailedError
from .action_noise import TemporallyCorrelatedNoise as TemporallyCorrelatedNoise
from .batch_dimension import BatchDimension as BatchDimension
from .batched_environment import BatchedEnvironment as BatchedEnvironment
from .creation import create_environment as create_environment, load as load
from .curriculum import Curriculum as Curriculum, TaskProgress as TaskProgress
from .env_specs import BoundedArraySpec as BoundedArraySpec
from .environment import Environment as Environment, Wrapper as Wrapper
from .evaluation import Evaluator as Evaluator, evaluate as evaluate
from .film import Film as Film, record_film as record_film
from .goal_conditioning import GoalConditioning as GoalConditioning
from .goal_tasks import GoalTasks as GoalTasks
from .gymnasium_adapter import to_gymnasium as to_gymnasium
from .gymnasium_environment import GymnasiumEnvironment as GymnasiumEnvironment
from .gymnasium_wrappers import (
    NonEpisodic as NonEpisodic,
    ObservationClip as ObservationClip,
    ObservationTransform as ObservationTransform,
    SparseReward as SparseReward,
)
from .image_wrappers import (
    EpisodicRandomFrameCrop as EpisodicRandomFrameCrop,
    FrameFlip as FrameFlip,
    ImageChannelFirst as ImageChannelFirst,
)
from .life_loss import AtariTerminalOnLifeLoss as AtariTerminalOnLifeLoss
from .multitask import Multitask as Multitask
from .observation_normalizer import ObservationNormalizer as ObservationNormalizer
from .parallel_environment import ParallelEnvironment as ParallelEnvironment
from .performance_profiler import PerformanceProfile as PerformanceProfile, PerformanceProfiler as PerformanceProfiler
from .py_environment import to_py_environment as to_py_environment
from .recording import record_episodes as record_episodes
from .thread_environment import ThreadEnvironment as ThreadEnvironment
from .time_limit import TimeLimit as TimeLimit
from .time_steps import (
    TimeStep as TimeStep,
    from_tf_agents as from_tf_agents,
    restart as restart,
    termination as termination,
    to_rlds_step as to_rlds_step,
    to_tf_agents as to_tf_agents,
    transition as transition,
    truncation as truncation,
)
from .wrapper_contract import check_wrapper as check_wrapper
from .wrappers import (
    ActionObservation as ActionObservation,
    ActionRepeat as ActionRepeat,
    DiscreteAction as DiscreteAction,
    NonEpisodicAgent as NonEpisodicAgent,
    RandomFirstEpisodeLength as RandomFirstEpisodeLength,
    ScalarReward as ScalarReward,
)
