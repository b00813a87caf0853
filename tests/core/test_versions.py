"""Tests of the version check of libraries whose internals are used."""

import pytest

from rlds2reverb._internals.versions import require_version


def test_untested_version_raises_with_the_command_to_fix_it():
    require_version("library", "1.2", "1.2")
    with pytest.raises(ImportError, match="tested with version 1.2 only, but 1.3 is installed; run pip install 'libr"):
        require_version("library", "1.3", "1.2")
