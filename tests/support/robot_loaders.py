"""The rules by which the loaders of Octo and OpenVLA read an RLDS dataset, as slow loops over NumPy arrays.

Octo (octo-models/octo, commit ec80974): octo/data/dataset.py, octo/data/traj_transforms.py and octo/data/obs_transforms.py.
OpenVLA (openvla/openvla, commit cc37137): the files of these names in prismatic/vla/datasets/rlds. Both read with dlimp
(kvablack/dlimp, commit ad72ce3, dlimp/dataset.py): every row of an episode, of which TFDS decodes nothing.
"""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds


def read_trajectories(path, cameras=()):
    """Yields the observations, actions and texts of each episode in `.../NAME/VERSION`.

    Observations, which must not be nested, keep the names of their fields, and images are files. No row is left out:
    `is_first`, `is_last`, `is_terminal`, rewards and discounts are not read.
    """
    builder = tfds.builder(path.parent.name, data_dir=path.parents[1])
    for record in builder.as_dataset(split="train", decoders={"steps": tfds.decode.SkipDecoding()}):
        steps = record["steps"]
        assert steps["language_instruction"].dtype == tf.string
        images = {name: [decode_image(file) for file in steps["observation"][name]] for name in cameras}
        numbers = {name: column for name, column in steps["observation"].items() if column.dtype != tf.string}
        observations = {name: tf.cast(column, tf.float32).numpy() for name, column in numbers.items()}
        actions = tf.cast(steps["action"], tf.float32).numpy()
        yield {**observations, **images}, actions, list(steps["language_instruction"].numpy())


def decode_image(file):
    """Returns an image; empty bytes are padding, which is masked."""
    return tf.io.decode_image(file, expand_animations=False).numpy() if len(file.numpy()) else None


def cut_octo_chunks(actions, horizon):
    """Returns chunks of actions `[T, horizon, ...]` and their mask, for a window of one observation.

    Chunks repeat the last action. The mask compares steps that are two lower than those of the actions, so that the
    first repetition is not masked.
    """
    last = len(actions) - 1
    chunks = np.array([[actions[min(row + place, last)] for place in range(horizon)] for row in range(last + 1)])
    mask = [[last - (row + place - 2) > 0 for place in range(horizon)] for row in range(last + 1)]
    return chunks, np.array(mask)


def cut_openvla_chunks(actions, horizon, is_absolute):
    """Returns chunks of actions `[T, horizon, ...]`, none of which are masked.

    After the last action, absolute elements repeat it, and the others are zero.
    """
    chunks, _ = cut_octo_chunks(actions, horizon)
    for row in range(len(actions)):
        for place in range(len(actions) - row, horizon):
            chunks[row, place] = np.where(is_absolute, actions[-1], 0)
    return chunks


def normalize_by_quantiles(actions, of_all):
    """Returns actions in [-1, 1], by the quantiles of all rows of the dataset; constant elements become 0."""
    low, high = np.quantile(of_all, 0.01, axis=0), np.quantile(of_all, 0.99, axis=0)
    scaled = np.clip(2 * (actions - low) / (high - low + 1e-8) - 1, -1, 1)
    return np.where(of_all.min(axis=0) == of_all.max(axis=0), 0, scaled)
