"""Training: a dataset in, a trained run out. This layer joins the core, the adders, the learners and the environments.

Names are imported when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
