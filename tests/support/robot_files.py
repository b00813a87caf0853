"""Small files of robots, in the layouts that the recorders of ALOHA, ManiSkill and Isaac Lab write."""

import io
import json

import h5py
import numpy as np
from PIL import Image


def make_images(num_rows, first=0):
    """Returns smooth images `[T, 12, 16, 3]`, which JPEG keeps almost exactly; row `t` is brighter by `first + t`."""
    column = np.arange(16, dtype=np.uint8)[None, None, :, None]
    images = np.zeros((num_rows, 12, 16, 3), np.uint8) + column * 4 + np.array([80, 40, 0], np.uint8)
    return images + np.arange(first, first + num_rows, dtype=np.uint8)[:, None, None, None]


def encode_image(image, kind="JPEG"):
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return stream.getvalue()


def damage_column(path, name):
    """Damages the stored values of a column of an HDF5 file."""
    with h5py.File(path, "r+") as file:
        values = file[name][()]
        del file[name]
        chunks = file.create_dataset(name, data=values, chunks=values.shape, compression="gzip").id
        place = chunks.get_chunk_info(0).byte_offset
    with path.open("r+b") as stream:
        stream.seek(place)
        stream.write(b"damaged")


def write_aloha(folder, lengths=(4, 3), *, is_compressed=False):
    """Writes a folder of episodes with two joints and two cameras, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, num_rows in enumerate(lengths):
        rows = np.arange(num_rows, dtype=np.float64)[:, None] + 10 * number
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file.attrs.update(sim=False, compress=is_compressed)
            file["observations/qpos"], file["observations/qvel"] = rows + np.array([0, 0.5]), rows * [1, -1]
            file["action"], file["base_action"] = rows + np.array([1, 1.5]), rows * [0, 1]
            images = {camera: make_images(num_rows, first) for first, camera in enumerate(("cam_high", "cam_low"))}
            if not is_compressed:
                for camera, column in images.items():
                    file[f"observations/images/{camera}"] = column
                continue
            encoded = {camera: [encode_image(image) for image in column] for camera, column in images.items()}
            width = max(len(image) for column in encoded.values() for image in column)
            for camera, column in encoded.items():
                padded = np.stack([np.frombuffer(image.ljust(width, b"\0"), np.uint8) for image in column])
                file.create_dataset(f"observations/images/{camera}", data=padded, chunks=(1, width))
            file["compress_len"] = np.array([[float(len(image)) for image in column] for column in encoded.values()])
    return folder


#: The flags in the last row of each trajectory of `write_maniskill`.
MANISKILL_ENDS = ({"terminated": True, "success": True}, {"truncated": True}, {})


def write_maniskill(path, *, has_rewards=True, has_sidecar=True, is_nested=True):
    """Writes three trajectories of 3 actions; `traj_10` is the last one, and the first is solved one row early."""
    numbers = (0, 2, 10)
    with h5py.File(path, "w") as file:
        for place, (number, end) in enumerate(zip(numbers, MANISKILL_ENDS, strict=True)):
            group = file.create_group(f"traj_{number}", track_order=True)
            states = np.arange(4, dtype=np.float32)[:, None] + 10 * place + np.zeros((1, 2), np.float32)
            if is_nested:
                group["obs/agent/qpos"], group["obs/extra/is_grasped"] = states, np.zeros(4, bool)
                group["obs/sensor_data/base_camera/rgb"] = make_images(4)
            else:
                group["obs"] = states
            group["actions"] = states[:3] + 0.5
            group["env_states/actors/cube"] = np.zeros((4, 13), np.float32)
            for name in ("terminated", "truncated", "success", "fail"):
                group[name] = np.array([False, place == 0 and name in end, end.get(name, False)])
            if has_rewards:
                group["rewards"] = np.array([0, 0.25, 1], np.float32)
    if has_sidecar:
        episodes = [
            {"episode_id": number, "episode_seed": number + 7, "control_mode": "pd_joint_pos", "elapsed_steps": 3,
             "success": number == 0, "reset_kwargs": {"seed": number + 7}} for number in numbers
        ]  # fmt: skip
        info = {"env_id": "PickCube-v1", "env_kwargs": {"obs_mode": "rgb"}, "max_episode_steps": 50}
        path.with_suffix(".json").write_text(json.dumps({"env_info": info, "episodes": episodes}))
    return path


def write_isaac_lab(path, successes=(True, False, True)):
    """Writes demonstrations of 4 rows, with nested observations and no rewards."""
    with h5py.File(path, "w") as file:
        environment = json.dumps({"env_name": "Isaac-Stack-Cube-Franka-IK-Rel-v0", "type": 2})
        file.create_group("data").attrs.update(total=4 * len(successes), env_args=environment)
        for number, success in enumerate(successes):
            group = file.create_group(f"data/demo_{number}")
            group.attrs.update(num_samples=4, seed=number + 5, success=success)
            columns = {
                "actions": np.full((4, 2), number, np.float32),
                "processed_actions": np.zeros((4, 2), np.float32),
                "obs/joint_pos": np.arange(8, dtype=np.float32).reshape(4, 2),
                "obs/datagen_info/eef_pose/franka": np.full((4, 4, 4), number, np.float32),
                "obs/datagen_info/subtask_term_signals/grasp_1": np.array([0, 0, 1, 1], bool),
                "initial_state/articulation/robot/joint_position": np.zeros((1, 2), np.float32),
            }
            for name, column in columns.items():
                group.create_dataset(name, data=column, compression="gzip")
    return path


def write_replay_buffer(path, lengths=(3, 4), *, zarr_format=2):
    """Writes episodes whose observations are a state and an image, as a folder, or as a zip file if it ends in `.zip`."""
    import zarr

    num_rows = sum(lengths)
    states = np.arange(2 * num_rows, dtype=np.float32).reshape(num_rows, 2)
    columns = {
        "data/state": states,
        "data/action": states + 0.5,
        "data/img": make_images(num_rows).astype(np.float32),
        "data/timestamp": np.arange(num_rows) / 10,
        "meta/episode_ends": np.cumsum(lengths),
    }
    options = {"zarr_format": zarr_format} if zarr.__version__ >= "3" else {}
    store = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else str(path)
    root = zarr.open_group(store, mode="w", **options)
    for name, column in columns.items():
        array = root.create_array if hasattr(root, "create_array") else root.create_dataset
        chunks = (2, *column.shape[1:])
        array(name, shape=column.shape, dtype=column.dtype, chunks=chunks)[:] = column
    if path.suffix == ".zip":
        store.close()
    return path


#: Fields of the bags that `write_bag` writes.
TOPICS = {
    "rate": 10,
    "fields": {
        "observation.state": "/joint_states.position",
        "observation.images.front": "/camera/image",
        "observation.images.wrist": "/wrist/compressed",
        "action": "/command.data",
    },
}


def write_bag(path, *, rows=range(6), kind="mcap", first=0, changes=()):
    """Writes a bag of rosbag2 with messages of ROS 2.

    Joint states come 20 times per second, images 10 times and 20 ms later, and commands 10 times and 30 ms later.

    Args:
      path: the folder.
      rows: numbers of the commands, of which there are 10 per second.
      kind: 'mcap' or 'sqlite3'.
      first: number that is added to all values.
      changes: numbers of joint states whose joints are in the other order.
    """
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    types = store.types
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](0, 0), "base")
    layout = types["std_msgs/msg/MultiArrayLayout"]([], 0)
    none = np.zeros(0)
    images = make_images(max(rows) + 1)
    with Writer(path, version=9, storage_plugin=StoragePlugin[kind.upper()]) as writer:
        connections = {
            topic: writer.add_connection(topic, kind_, typestore=store)
            for topic, kind_ in (
                ("/joint_states", "sensor_msgs/msg/JointState"),
                ("/camera/image", "sensor_msgs/msg/Image"),
                ("/wrist/compressed", "sensor_msgs/msg/CompressedImage"),
                ("/command", "std_msgs/msg/Float64MultiArray"),
                ("/label", "std_msgs/msg/String"),
            )
        }

        def write(topic, milliseconds, *values):
            connection = connections[topic]
            message = types[connection.msgtype](*values)
            writer.write(connection, 1_000_000 * milliseconds, store.serialize_cdr(message, connection.msgtype))

        for row in rows:
            for place in (2 * row, 2 * row + 1):
                names = ["b", "a"] if place in changes else ["a", "b"]
                write("/joint_states", 50 * place, header, names, np.array([place, first], float), none, none)
            # Two bytes of padding follow each row, and the colours are reversed.
            padded = np.pad(images[row][:, :, ::-1].reshape(12, 48), ((0, 0), (0, 2))).reshape(-1)
            write("/camera/image", 100 * row + 20, header, 12, 16, "bgr8", 0, 50, padded)
            compressed = np.frombuffer(encode_image(images[row], "PNG"), np.uint8)
            write("/wrist/compressed", 100 * row + 20, header, "rgb8; png compressed bgr8", compressed)
            write("/command", 100 * row + 30, layout, np.array([row + first, 0.5]))
            write("/label", 100 * row + 30, f"row {row}")
    return path


def write_split_bag(path, *, kind):
    """Writes the bag of `write_bag` as three files, as `ros2 bag record --max-bag-duration` does."""
    for number in range(3):
        part = write_bag(path.with_name(f"part_{number}"), rows=range(2 * number, 2 * number + 2), kind=kind)
        path.mkdir(exist_ok=True)
        (file,) = (file for file in part.iterdir() if file.name != "metadata.yaml")
        file.rename(path / f"{path.name}_{number}{file.suffix}")
    listed = "".join(f"\n  - {path.name}_{number}{file.suffix}" for number in range(3))
    text = (
        (part / "metadata.yaml")
        .read_text()
        .replace(f"relative_file_paths:\n  - {file.name}", f"relative_file_paths:{listed}")
    )
    (path / "metadata.yaml").write_text(text)
    return path
