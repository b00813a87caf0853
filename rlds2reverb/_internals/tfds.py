"""What we use of TFDS beyond its public interface: how often it tries a download, and whether it draws bars."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tensorflow_datasets.core.download import downloader
from tensorflow_datasets.core.utils import tqdm_utils

#: TFDS tries 10 times and waits longer each time, minutes in all.
_RETRIES = 2


@contextmanager
def few_retries_and_no_bars() -> Iterator[None]:
    """Within it a download without a network fails after about a second; no bars are drawn, nor retries logged."""
    retries = logging.getLogger("urllib3.connectionpool")
    level = retries.level
    retries.setLevel(logging.ERROR)
    try:
        with mock.patch.object(downloader, "MAX_RETRIES", _RETRIES), mock.patch.object(tqdm_utils, "_active", False):
            yield
    finally:
        retries.setLevel(level)
