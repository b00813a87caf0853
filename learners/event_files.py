"""Truncation of TensorBoard event files, for a run that resumes from an earlier step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlds2reverb.system.sealed_files import replace_file


def cut_events_after(folder: Path, last_step: Callable[[str], int]) -> None:
    """Removes the events of later steps, and an unfinished last record, from the event files in a folder.

    Otherwise TensorBoard would draw the discarded steps and the new ones on top of each other. Each file is replaced
    as a whole, and only if it changes.

    Args:
      folder: folder of the event files; may be missing.
      last_step: function from the tag of a value to the last step to keep.
    """
    if not folder.is_dir():
        return
    import tensorflow as tf

    for path in sorted(folder.glob("events.out.tfevents.*")):
        kept, is_unchanged = [], True
        try:
            for record in tf.data.TFRecordDataset(str(path)):
                event = tf.compat.v1.Event.FromString(record.numpy())
                is_kept = all(event.step <= last_step(value.tag) for value in event.summary.value)
                is_unchanged &= is_kept
                kept += [record.numpy()] if is_kept else []
        except tf.errors.DataLossError:
            is_unchanged = False
        if is_unchanged:
            continue
        with replace_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
            for content in kept:
                writer.write(content)
