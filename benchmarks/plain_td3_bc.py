"""An independent TD3+BC with Keras, written from the paper, to compare with the behaviour of rlds2reverb's agent.

    python benchmarks/plain_td3_bc.py DATA.hdf5 [--steps 40000] [--alpha 2.5] [--env Hopper-v5]

It shares nothing with `rlds2reverb.learners`: the file is read with h5py, and networks and optimisers are Keras's. It
prints the mean value of the data's actions and the mean return of five episodes every 5,000 updates. If rewards are at
most r, no true value exceeds r / (1 - 0.99).

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


def read_transitions(path: str) -> dict[str, np.ndarray]:
    """Returns the transitions of a D4RL file, without those into a truncation, whose next observation is unknown."""
    with h5py.File(path) as file:
        columns = {name: file[name][:] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
    rows = np.flatnonzero(~columns["timeouts"].astype(bool))
    rows = rows[(rows + 1 < len(columns["rewards"])) | columns["terminals"][rows].astype(bool)]
    following = np.minimum(rows + 1, len(columns["rewards"]) - 1)  # Ignored for terminal rows.
    mean, std = columns["observations"].mean(0), columns["observations"].std(0) + 1e-3
    observations = ((columns["observations"] - mean) / std).astype(np.float32)
    return {
        "s": observations[rows],
        "a": columns["actions"][rows].astype(np.float32),
        "r": columns["rewards"][rows].astype(np.float32),
        "discount": 1 - columns["terminals"][rows].astype(np.float32),
        "next": observations[following],
        "mean": mean,
        "std": std,
    }


def make_network(inputs: int, outputs: int, last: str | None) -> tf.keras.Model:
    layers = [tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(256, "relu")]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(outputs, last)])
    model.build([None, inputs])
    return model


def compute_mean_return(actor: tf.keras.Model, data: dict[str, np.ndarray], name: str) -> float:
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
    data = read_transitions(arguments.data)
    s, a, r, discount, following = (tf.constant(data[name]) for name in ("s", "a", "r", "discount", "next"))
    features, width = s.shape[1], a.shape[1]
    actor, actor_target = (make_network(features, width, "tanh") for _ in range(2))
    critics, critic_targets = ([make_network(features + width, 1, None) for _ in range(2)] for _ in range(2))
    for online, target in zip([actor, *critics], [actor_target, *critic_targets], strict=True):
        target.set_weights(online.get_weights())
    actor_adam, critic_adam = (tf.keras.optimizers.Adam(3e-4) for _ in range(2))
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
        target_value = tf.gather(r, rows) + GAMMA * tf.gather(discount, rows) * best
        with tf.GradientTape() as tape:
            values = [value(critic, at, action) for critic in critics]
            loss = sum(tf.reduce_mean(tf.square(value - target_value)) for value in values)
        critic_adam.apply_gradients(zip(tape.gradient(loss, critic_weights), critic_weights, strict=True))
        if step % DELAY == 0:
            with tf.GradientTape() as tape:
                chosen = actor(at)
                q = value(critics[0], at, chosen)
                scale = arguments.alpha / tf.stop_gradient(tf.reduce_mean(tf.abs(q)))
                actor_loss: Any = tf.reduce_mean(tf.square(chosen - action)) - scale * tf.reduce_mean(q)
            gradients = tape.gradient(actor_loss, actor.trainable_variables)
            actor_adam.apply_gradients(zip(gradients, actor.trainable_variables, strict=True))
            for online, target in zip([actor, *critics], [actor_target, *critic_targets], strict=True):
                for weight, slow in zip(online.trainable_variables, target.trainable_variables, strict=True):
                    slow.assign_add(TAU * (weight - slow))
        return tf.reduce_mean(values[0])

    highest = data["r"].max()
    print(f"{len(r):,} transitions, rewards up to {highest:.2f}: true values are at most {highest * 100:,.0f}")
    for step in range(1, arguments.steps + 1):
        mean_value = update(tf.constant(step))
        if step % 5000 == 0:
            mean_return = compute_mean_return(actor, data, arguments.env)
            print(f"{step:>9,}   mean value {float(mean_value):>14,.0f}   mean return {mean_return:>8,.0f}", flush=True)


if __name__ == "__main__":
    main()
