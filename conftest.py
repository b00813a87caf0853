"""Lets a bare checkout be tested: the branches beside the trunk become parts of it, as setup.py maps them."""

from pathlib import Path

import rlds2reverb

root = str(Path(__file__).parent)
if root not in rlds2reverb.__path__ and not hasattr(rlds2reverb, "cli"):
    rlds2reverb.__path__.insert(1, root)  # before what is installed: the checkout is tested
