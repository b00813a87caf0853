"""Environments: ALF's time steps, wrappers and parallel environments on Gymnasium, for TF-Agents.

All names are imported on first use, so that worker processes import neither TensorFlow nor what they do not use.
"""

import lazy_loader

from rlds2reverb.system.replacements import explain_missing

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = explain_missing(__getattr__)
