"""Truncation of TensorBoard event files, for a run that resumes from an earlier step."""

from __future__ import annotations

from pathlib import Path


def cut_events_after(folder: Path, step: int) -> None:
    """Removes the events of later steps, and an unfinished last record, from the event files in a folder.

    Otherwise TensorBoard would draw the discarded steps and the new ones on top of each other. Each file is replaced
    as a whole, and only if it changes.
    """
    if not folder.is_dir():
        return
    import tensorflow as tf

    for path in sorted(folder.glob("events.out.tfevents.*")):
        kept, is_unchanged = [], True
        try:
            for record in tf.data.TFRecordDataset(str(path)):
                event = tf.compat.v1.Event.FromString(record.numpy())
                is_unchanged &= event.step <= step
                kept += [record.numpy()] if event.step <= step else []
        except tf.errors.DataLossError:
            is_unchanged = False
        if is_unchanged:
            continue
        temporary = path.with_name(f"{path.name}.tmp".replace("tfevents", "cut"))
        with tf.io.TFRecordWriter(str(temporary)) as writer:
            for content in kept:
                writer.write(content)
        temporary.replace(path)
