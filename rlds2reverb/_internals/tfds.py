"""What we use of TFDS beyond its public interface: how often it tries a download, and whether it draws bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tensorflow_datasets.core.download import downloader
from tensorflow_datasets.core.utils import tqdm_utils

#: TFDS tries 10 times and waits longer each time, minutes in all.
_RETRIES = 2


@contextmanager
def few_retries_and_no_bars() -> Iterator[None]:
    """Without a network a download fails within it after about a second, and no progress bars are drawn."""
    with mock.patch.object(downloader, "MAX_RETRIES", _RETRIES), mock.patch.object(tqdm_utils, "_active", False):
        yield
