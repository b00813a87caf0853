"""Makes a bare checkout testable: the layers become sub-packages of `rlds2reverb`, as setup.py maps them."""

from pathlib import Path

import rlds2reverb

root = str(Path(__file__).parent)
if root not in rlds2reverb.__path__ and not hasattr(rlds2reverb, "cli"):
    rlds2reverb.__path__.insert(1, root)  # Before the installed layers, so that those of the checkout are tested.
