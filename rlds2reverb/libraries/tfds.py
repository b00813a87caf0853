"""Uses of TFDS internals: the limit of download retries, progress bars, and logged warnings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader
from tensorflow_datasets.core.utils import tqdm_utils

from . import tensorflow_internals  # noqa: F401 - Changes how TensorFlow, which TFDS uses, behaves at exit.
from .versions import require_tested

require_tested("tensorflow-datasets", tfds.__version__, feature="reading RLDS datasets")

#: With TFDS's own limit of 10 retries with growing delays, a download takes minutes to fail.
_MAX_RETRIES = 2


def _is_no_deprecation(record: logging.LogRecord) -> bool:
    return "is deprecated" not in record.getMessage()


@contextmanager
def hide_deprecations() -> Iterator[None]:
    """Hides TFDS's warnings about its own use of deprecated attributes, one for each field stored as bytes."""
    logger = logging.getLogger("absl")
    logger.addFilter(_is_no_deprecation)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_deprecation)


def decode_only(features: Any, decoders: dict[str, Any]) -> Any:
    """Returns the decoders with which only these features are read, which TFDS cannot select in nested datasets."""
    partial: Any = tfds.decode.PartialDecoding(features, decoders)
    partial.extract_features = lambda _: features
    return partial


@contextmanager
def quiet_downloads() -> Iterator[None]:
    """Hides progress bars and logged retries, and makes downloads without a network fail within about a second."""
    retries = logging.getLogger("urllib3.connectionpool")
    level = retries.level
    retries.setLevel(logging.ERROR)
    try:
        with (
            mock.patch.object(downloader, "MAX_RETRIES", _MAX_RETRIES),
            mock.patch.object(tqdm_utils, "_active", False),
        ):
            yield
    finally:
        retries.setLevel(level)
