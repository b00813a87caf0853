"""Hooks: callables that a `Learner` calls around its iterations."""

import lazy_loader

from rlds2reverb.system.replacements import explain_missing

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = explain_missing(__getattr__)
