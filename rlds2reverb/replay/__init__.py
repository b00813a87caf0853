"""Replay buffers in the learner's process, and a manager of several.

The names are imported on first use.
"""

import lazy_loader

from rlds2reverb.system.replacements import explain_missing

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = explain_missing(__getattr__)
