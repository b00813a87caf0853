"""Datasets read as episodes: opened in any format, checked, transformed, stored and written.

The names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
