"""Datasets that TFDS prepared as ArrayRecord files, which TFDS itself cannot read through `tf.data`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlds2reverb.errors import SourceError
from rlds2reverb.system.installation import install_command

if TYPE_CHECKING:
    import tensorflow as tf

#: Name of the format in `dataset_info.json`, and suffix of its files.
ARRAY_RECORD = "array_record"
#: Number of records that are read from a file at once.
_RECORDS_PER_READ = 16


def read_array_records(split: Any, features: Any, decoders: Any) -> tf.data.Dataset:
    """Returns the dataset of the examples of a split, one file after the other.

    Args:
      split: TFDS's description of a split or of a slice, whose `file_instructions` name the files and their records.
      features: TFDS's features of an example.
      decoders: TFDS's decoders of the features.

    Raises:
      SourceError: If the package `array-record` is missing; while iterating, TensorFlow's error of a damaged file.
    """
    import tensorflow as tf

    from rlds2reverb.libraries.python_datasets import PythonDataset
    from rlds2reverb.libraries.tensorflow_internals import without_autograph

    _import_array_record()
    instructions = split.file_instructions

    def read() -> Iterator[bytes]:
        for part in instructions:
            yield from _read_records(part.filename, part.skip, part.skip + part.take, part.examples_in_shard)

    records = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([], tf.string))
    decode = without_autograph(lambda record: features.deserialize_example(record, decoders=decoders))
    return PythonDataset(records.map(decode))


def _read_records(path: str, first: int, stop: int, num_records: int) -> Iterator[bytes]:
    """Yields a range of the records of a file that must have this number of them."""
    reader = _import_array_record().ArrayRecordReader(path)
    try:
        if reader.num_records() != num_records:
            raise ValueError(f"a file must have {num_records} records as in shard_lengths, got {reader.num_records()}")
        for begin in range(first, stop, _RECORDS_PER_READ):
            yield from reader.read(begin, min(begin + _RECORDS_PER_READ, stop))
    finally:
        reader.close()


def _import_array_record() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise SourceError(
            f"reading {ARRAY_RECORD} files requires the package array-record, which cannot be imported ({error}); "
            f"run {install_command('array-record')}, or prepare the dataset with file_format='tfrecord'"
        ) from error
    return array_record_module
