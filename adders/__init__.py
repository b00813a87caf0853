"""Adders, which turn episodes into items: n-step transitions, windows, whole episodes, advantages and returns.

Each adder is defined once. It turns a dataset of episodes into a dataset of items, and can also be passed to
`rlds2reverb.ingest` as `adder`, and to `rlds2reverb.batches` as `items`. The functions compute returns and advantages
from tensors. DI-engine's `Adder` is in `rlds2reverb.adders.di_engine`.
"""

import lazy_loader

from rlds2reverb.system.replacements import explain_missing

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = explain_missing(__getattr__)
