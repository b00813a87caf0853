"""Small LeRobot datasets of version 3.0 in the published layout, written with PyArrow and PyAV alone."""

import json
from fractions import Fraction

import av
import numpy as np
import pyarrow as pa
from pyarrow import parquet

CAMERA = "observation.images.top"
SIZE = 32
_DATA = "data/chunk-000/file-{:03d}.parquet"


def write_video(path, frames, fps, *, codec="libx264", pix_fmt="yuv420p", options=None):
    """Writes images [T, H, W, 3], or 12-bit codes [T, H, W] if the format is gray12le."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=Fraction(fps), options=options or {"crf": "8", "g": "2"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        for image in frames:
            if image.ndim == 3:
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            else:
                frame = av.VideoFrame(image.shape[1], image.shape[0], pix_fmt)
                rows = np.zeros((image.shape[0], frame.planes[0].line_size // 2), "<u2")
                rows[:, : image.shape[1]] = image
                frame.planes[0].update(rows.tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def make_frames(num_frames):
    """Returns grey images that become lighter with each frame, by 10 of 255."""
    return np.zeros((num_frames, SIZE, SIZE, 3), np.uint8) + (10 * np.arange(num_frames, dtype=np.uint8)).reshape(
        -1, 1, 1, 1
    )


def write_sample(
    path,
    lengths,
    *,
    starts=None,
    stops=None,
    fps=10,
    columns=None,
    features=None,
    info=None,
    files=None,
    stated_files=None,
):
    """Writes a dataset with a camera whose frames are those of `make_frames`, in one file.

    Args:
      path: the directory.
      lengths: number of rows of each episode.
      starts: `from_timestamp` of each episode; by default the right one. None in it leaves out the camera.
      stops: `to_timestamp` of each episode; by default start + length / fps.
      fps: rate of info.json.
      columns: columns [R, ...] of all rows that replace or complete the others.
      features: entries of info.json for them.
      info: other changes of info.json; a value of None removes the entry.
      files: number of the data file of each episode.
      stated_files: the same as the metadata state it.
    """
    lengths, num_rows = np.array(lengths), int(np.sum(lengths))
    ends = np.cumsum(lengths)
    episode_index = np.repeat(np.arange(len(lengths)), lengths)
    frame_index = np.arange(num_rows) - np.repeat(ends - lengths, lengths)
    random = np.random.default_rng(0)
    values = {
        "observation.state": random.normal(size=(num_rows, 2)).astype(np.float32),
        "action": random.normal(size=(num_rows, 2)).astype(np.float32),
        "timestamp": (frame_index / fps).astype(np.float32),
        "frame_index": frame_index,
        "episode_index": episode_index,
        "index": np.arange(num_rows),
        "task_index": np.zeros(num_rows, np.int64),
        **(columns or {}),
    }
    described = {name: {"dtype": "int64", "shape": [1], "names": None} for name in values}
    for name, column in values.items():
        if isinstance(column, np.ndarray):
            described[name] = {"dtype": column.dtype.name, "shape": [*column.shape[1:]] or [1], "names": None}
    starts = (ends - lengths) / fps if starts is None else np.array(starts)
    stops = starts + lengths / fps if stops is None else np.array(stops)
    described[CAMERA] = {"dtype": "video", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]}
    described = {name: feature for name, feature in {**described, **(features or {})}.items() if feature}
    write_video(path / f"videos/{CAMERA}/chunk-000/file-000.mp4", make_frames(num_rows), 10)
    files = files or [0] * len(lengths)
    table = pa.table(
        {
            name: column
            if isinstance(column, pa.Array)
            else pa.array(column.tolist(), pa.list_(pa.float32()) if column.ndim == 2 else None)
            if column.dtype.kind != "f" or column.ndim == 2
            else pa.array(column)
            for name, column in values.items()
        }
    )
    (path / "data/chunk-000").mkdir(parents=True)
    for number in sorted(set(files)):
        rows = np.isin(episode_index, np.flatnonzero(np.array(files) == number))
        parquet.write_table(table.filter(pa.array(rows)), path / _DATA.format(number))
    episodes = []
    for number, length in enumerate(lengths.tolist()):
        row = {"episode_index": number, "tasks": ["do it"], "length": length, "data/chunk_index": 0}
        row |= {"data/file_index": (stated_files or files)[number]}
        row |= {"dataset_from_index": int(ends[number]) - length, "dataset_to_index": int(ends[number])}
        for name, feature in described.items():
            if feature["dtype"] == "video":
                row |= {f"videos/{name}/chunk_index": 0, f"videos/{name}/file_index": 0}
                row |= {f"videos/{name}/from_timestamp": float(starts[number])}
                row |= {f"videos/{name}/to_timestamp": float(stops[number])}
        episodes.append(row)
    (path / "meta/episodes/chunk-000").mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(episodes), path / "meta/episodes/chunk-000/file-000.parquet")
    parquet.write_table(pa.table({"task_index": [0], "task": ["do it"]}), path / "meta/tasks.parquet")
    content = {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "fps": fps,
        "features": described,
        "total_episodes": len(lengths),
        "total_frames": num_rows,
        "total_tasks": 1,
        "chunks_size": 1000,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        **(info or {}),
    }
    (path / "meta/info.json").write_text(
        json.dumps({key: value for key, value in content.items() if value is not None})
    )
    return path
