"""Training without exported policies, which take more than half of the time of a short run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def skip_exports() -> Iterator[None]:
    """Prevents learners from exporting policies, for tests that do not read them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("export_policy", "copy_policy"):
            patch.setattr(f"rlds2reverb.learners.learner.{name}", lambda policy, path, **options: Path(path))
        yield
