"""Reports on datasets, tables and training runs: one HTML page each, with figures, that needs no network."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
