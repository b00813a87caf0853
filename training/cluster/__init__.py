"""Training on a Ray cluster (extra `ray`): collectors, replay servers, learners and an evaluator as processes.

Names are imported when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
