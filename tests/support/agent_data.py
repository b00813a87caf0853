"""Small specs and batches for tests of the agents."""

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, time_step, trajectory

from rlds2reverb.learners.agents import get_hyperparameters
from rlds2reverb.learners.algorithms import get_algorithm

OBSERVATION, ACTION = 3, 2
TIME_STEP_SPEC = time_step.time_step_spec(tf.TensorSpec([OBSERVATION], tf.float32, "observation"))
GOAL_TIME_STEP_SPEC = time_step.time_step_spec(dict.fromkeys(["observation", "goal"], TIME_STEP_SPEC.observation))
ACTION_SPEC = tensor_spec.BoundedTensorSpec([ACTION], tf.float32, [-2.0, 0.0], [2.0, 1.0], "action")
#: Spec of four discrete actions.
DISCRETE_SPEC = tensor_spec.BoundedTensorSpec([], tf.int32, -1, 2)
#: Specs of time steps with two numbers, and of one action in [-1, 1].
SMALL_SPECS = (
    time_step.time_step_spec(tf.TensorSpec([2], tf.float32)),
    tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1),
)
CENTRE, HALF_WIDTH = np.array([0.0, 0.5]), np.array([2.0, 0.5])


def make_columns(size, seed=0):
    """Returns random columns of `size` transitions; the first one ends in a terminal state."""
    rng = np.random.default_rng(seed)
    discount = np.full(size, 0.9)
    discount[0] = 0
    return {
        "observation": rng.normal(size=(size, OBSERVATION)).astype(np.float32),
        "action": rng.uniform([-2, 0], [2, 1], size=(size, ACTION)).astype(np.float32),
        "reward": rng.normal(size=size).astype(np.float32),
        "discount": discount.astype(np.float32),
        "next_observation": rng.normal(size=(size, OBSERVATION)).astype(np.float32),
        "next_action": rng.uniform([-2, 0], [2, 1], size=(size, ACTION)).astype(np.float32),
        "return_to_go": rng.normal(size=size).astype(np.float32),
    }


def make_discrete(data, step):
    """Returns columns with actions of `DISCRETE_SPEC` that depend on the step."""
    actions = (np.arange(len(data["reward"]), dtype=np.int32) + step) % 4 - 1
    return {**data, "action": actions, "next_action": actions}


def to_transition(data):
    """Converts columns to TF-Agents' Transition [B, ...], with return to go or mask as policy info if there is one."""
    size = len(data["reward"])
    first = time_step.TimeStep(tf.ones([size], tf.int32), tf.zeros([size]), tf.ones([size]), data["observation"])
    step_type = np.where(data["discount"] == 0, time_step.StepType.LAST, time_step.StepType.MID).astype(np.int32)
    end = time_step.TimeStep(step_type, data["reward"], data["discount"], data["next_observation"])
    info = {name: data[name] for name in ("return_to_go", "mask") if name in data} or ()
    return tf.nest.map_structure(
        tf.convert_to_tensor, trajectory.Transition(first, policy_step.PolicyStep(data["action"], (), info), end)
    )


def to_trajectory(data):
    """Converts columns to TF-Agents' Trajectory [B, 2, ...]."""
    size = len(data["reward"])
    is_last = data["discount"] == 0
    step_types = np.stack([np.ones(size), np.where(is_last, 2, 1)], axis=1).astype(np.int32)
    next_step_types = np.stack([np.where(is_last, 2, 1), np.where(is_last, 0, 1)], axis=1).astype(np.int32)

    def stack(first, second):
        return tf.nest.map_structure(lambda *columns: np.stack(columns, axis=1), first, second)

    return tf.nest.map_structure(
        tf.convert_to_tensor,
        trajectory.Trajectory(
            step_type=step_types,
            observation=stack(data["observation"], data["next_observation"]),
            action=stack(data["action"], data["next_action"]),
            policy_info=(),
            next_step_type=next_step_types,
            reward=stack(data["reward"], np.zeros(size, np.float32)),
            discount=stack(data["discount"], np.ones(size, np.float32)),
        ),
    )


def observe(name, observation):
    """Returns an observation, or its spec or statistics, as an algorithm sees it: with a goal like it if it has one."""
    has_goals = get_algorithm(name).items == "goals"
    return {"observation": observation, "goal": observation} if has_goals else observation


def to_goals(data):
    """Converts columns to a Transition [B, ...] with goals, which are the observations of other items."""

    def shift(number):
        return tf.nest.map_structure(lambda column: np.roll(column, number, axis=0), data["observation"])

    columns = {name: {"observation": data[name], "goal": shift(1)} for name in ("observation", "next_observation")}
    goals = {"actor_goal": shift(2), "low_goal": shift(3), "subgoal": shift(-1), "subgoal_state": shift(-1)}
    experience = to_transition({**data, **columns})
    info = tf.nest.map_structure(tf.convert_to_tensor, goals)
    return experience._replace(action_step=experience.action_step._replace(info=info))


def make_windows(size, length, seed=0):
    """Returns random windows as TF-Agents' Trajectory [B, K, ...]; all but the first one are padded on the left."""
    rng = np.random.default_rng(seed)
    mask = np.arange(length) >= np.arange(size)[:, None] % length
    zeros = np.zeros([size, length], np.int32)
    columns = {
        "observation": rng.normal(size=(size, length, OBSERVATION)).astype(np.float32),
        "action": rng.uniform([-2, 0], [2, 1], size=(size, length, ACTION)).astype(np.float32),
        "reward": rng.normal(size=(size, length)).astype(np.float32),
        "discount": np.ones([size, length], np.float32),
    }
    info = {
        "return_to_go": rng.normal(scale=10, size=(size, length)).astype(np.float32),
        "time_step": np.arange(length, dtype=np.int32) + rng.integers(0, 6, (size, 1), np.int32),
        "mask": mask,
    }
    steps = trajectory.Trajectory(step_type=zeros + 1, next_step_type=zeros + 1, policy_info=info, **columns)
    return tf.nest.map_structure(tf.convert_to_tensor, steps)


def small_networks(name):
    """Returns hyperparameters of small networks of an algorithm, and those that have no default."""
    if name == "spot":
        return {"hidden_sizes": (4,), "density_hidden_sizes": (4,), "num_density_updates": 1}
    if name != "decision_transformer":
        return {"hidden_sizes": (4,)}
    sizes = {"width": 4, "num_layers": 1, "num_heads": 1, "context_length": 3, "max_time_steps": 4}
    return {**sizes, "target_return": 1.0}


def change_hyperparameters(name):
    """Returns different values of the hyperparameters that do not change the shapes of variables."""
    of_shapes = {*small_networks(name), "latent_size", "num_critics", "representation_size"}
    of_shapes |= {"num_samples"} if name == "fql" else set()  # It creates a different actor.
    declared = {key: option for key, option in get_hyperparameters(name).items() if key not in of_shapes}
    return {key: value for key, option in declared.items() if (value := change(option)) is not None}


def change(option):
    """Returns a value of an option that is not its default; None for options of other types than numbers and bools."""
    if option.type == "number":
        return option.default * 0.5 if option.default else 0.3
    if option.type == "two numbers":
        return tuple(0.5 * bound for bound in option.default)
    if option.type == "integer":
        return max(option.default or 0, option.limits.min) + 1
    return not option.default if option.type == "boolean" else None


def to_windows(data):
    """Returns random windows of three steps, whose observations are those of the columns."""
    observation = tf.stack([tf.convert_to_tensor(data["observation"])] * 3, axis=1)
    return make_windows(len(data["reward"]), 3)._replace(observation=observation)


def to_experience(name, data):
    """Converts columns to the experience that an algorithm learns from."""
    convert = {"transitions": to_transition, "trajectories": to_trajectory, "goals": to_goals, "windows": to_windows}
    return convert[get_algorithm(name).items](data)


def run_updates(agent, experience, num_updates, *, num_batches=10):
    """Trains an agent for some updates in one graph, on the parts of an experience [num_batches * B, ...] in turn."""
    train = tf.autograph.experimental.do_not_convert(agent.train)
    batches = tf.nest.map_structure(lambda x: tf.reshape(x, [num_batches, -1, *x.shape[1:]]), experience)

    @tf.function
    def run():
        for step in tf.range(num_updates):
            train(tf.nest.map_structure(lambda x, at=step % num_batches: x[at], batches))

    run()
