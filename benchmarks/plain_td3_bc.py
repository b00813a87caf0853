"""TD3+BC once more, written plainly from the paper with Keras, to see whether what our agent does is the algorithm's.

    python benchmarks/plain_td3_bc.py DATA.hdf5 [--steps 40000] [--alpha 2.5] [--env Hopper-v5]

Nothing is shared with `rlds2reverb.learners`: the file is read by h5py, networks and optimisers are Keras's. It prints
the mean value of the data's actions and the mean return of five episodes every 5,000 updates. Where rewards are at most
r, no true value is above r / (1 - 0.99).

Fujimoto & Gu (2021), "A Minimalist Approach to Offline Reinforcement Learning", algorithm and table 3.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import h5py
import numpy as np
import tensorflow as tf

GAMMA, TAU, NOISE, CLIP, DELAY = 0.99, 0.005, 0.2, 0.5, 2


def transitions(path: str) -> dict[str, np.ndarray]:
    """Returns the transitions of a D4RL file; those into a time-out have no next observation and are left out."""
    with h5py.File(path) as file:
        columns = {name: file[name][:] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
    rows = np.flatnonzero(~columns["timeouts"].astype(bool))
    rows = rows[(rows + 1 < len(columns["rewards"])) | columns["terminals"][rows].astype(bool)]
    following = np.minimum(rows + 1, len(columns["rewards"]) - 1)  # of a terminal row it does not count
    mean, std = columns["observations"].mean(0), columns["observations"].std(0) + 1e-3
    observations = ((columns["observations"] - mean) / std).astype(np.float32)
    return {
        "s": observations[rows],
        "a": columns["actions"][rows].astype(np.float32),
        "r": columns["rewards"][rows].astype(np.float32),
        "goes_on": 1 - columns["terminals"][rows].astype(np.float32),
        "next": observations[following],
        "mean": mean,
        "std": std,
    }


def network(inputs: int, outputs: int, last: str | None) -> tf.keras.Model:
    layers = [tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(256, "relu")]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(outputs, last)])
    model.build([None, inputs])
    return model


def mean_return(actor: tf.keras.Model, data: dict[str, np.ndarray], name: str) -> float:
    act = tf.function(actor)
    returns = []
    for seed in range(5):
        env = gymnasium.make(name)
        observation, _ = env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            state = ((observation - data["mean"]) / data["std"]).astype(np.float32)
            action = np.clip(act(state[None])[0], env.action_space.low, env.action_space.high)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--alpha", type=float, default=2.5)
    parser.add_argument("--env", default="Hopper-v5")
    arguments = parser.parse_args()
    data = transitions(arguments.data)
    s, a, r, goes_on, following = (tf.constant(data[name]) for name in ("s", "a", "r", "goes_on", "next"))
    features, width = s.shape[1], a.shape[1]
    actor, actor_target = (network(features, width, "tanh") for _ in range(2))
    critics, critic_targets = ([network(features + width, 1, None) for _ in range(2)] for _ in range(2))
    for online, target in zip([actor, *critics], [actor_target, *critic_targets], strict=True):
        target.set_weights(online.get_weights())
    adam_of_actor, adam_of_critics = (tf.keras.optimizers.Adam(3e-4) for _ in range(2))
    critic_weights = [weight for critic in critics for weight in critic.trainable_variables]

    def value(critic: tf.keras.Model, states: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        return critic(tf.concat([states, actions], 1))[:, 0]

    @tf.function
    def update(step: tf.Tensor) -> tf.Tensor:
        rows = tf.random.uniform([256], maxval=len(r), dtype=tf.int32)
        at, action, then = tf.gather(s, rows), tf.gather(a, rows), tf.gather(following, rows)
        noise = tf.clip_by_value(NOISE * tf.random.normal([256, width]), -CLIP, CLIP)
        next_action = tf.clip_by_value(actor_target(then) + noise, -1, 1)
        best = tf.minimum(*(value(critic, then, next_action) for critic in critic_targets))
        wanted = tf.gather(r, rows) + GAMMA * tf.gather(goes_on, rows) * best
        with tf.GradientTape() as tape:
            values = [value(critic, at, action) for critic in critics]
            loss = sum(tf.reduce_mean(tf.square(each - wanted)) for each in values)
        adam_of_critics.apply_gradients(zip(tape.gradient(loss, critic_weights), critic_weights, strict=True))
        if step % DELAY == 0:
            with tf.GradientTape() as tape:
                chosen = actor(at)
                q = value(critics[0], at, chosen)
                scale = arguments.alpha / tf.stop_gradient(tf.reduce_mean(tf.abs(q)))
                actor_loss: Any = tf.reduce_mean(tf.square(chosen - action)) - scale * tf.reduce_mean(q)
            gradients = tape.gradient(actor_loss, actor.trainable_variables)
            adam_of_actor.apply_gradients(zip(gradients, actor.trainable_variables, strict=True))
            for online, target in zip([actor, *critics], [actor_target, *critic_targets], strict=True):
                for weight, slow in zip(online.trainable_variables, target.trainable_variables, strict=True):
                    slow.assign_add(TAU * (weight - slow))
        return tf.reduce_mean(values[0])

    print(f"{len(r):,} transitions, rewards up to {data['r'].max():.2f}: no value above {data['r'].max() * 100:,.0f}")
    for step in range(1, arguments.steps + 1):
        mean_value = update(tf.constant(step))
        if step % 5000 == 0:
            found = mean_return(actor, data, arguments.env)
            print(f"{step:>9,}   mean value {float(mean_value):>14,.0f}   mean return {found:>8,.0f}", flush=True)


if __name__ == "__main__":
    main()
