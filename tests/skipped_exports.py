"""Training without exported policies, which take more than half of the time of a short run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def skip_exports() -> Iterator[None]:
    """Prevents learners from exporting policies, for tests that do not read them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlds2reverb.learners.learner.export_policy", lambda policy, path, **options: Path(path))
        yield
