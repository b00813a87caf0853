"""Hooks: callables that a `Learner` calls around its iterations."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
