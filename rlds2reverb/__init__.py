"""Writes offline RL datasets to Reverb as items, and samples batches from it.

All names, which `__init__.pyi` lists, are imported on first use, so that `import rlds2reverb` is fast. The start-up
messages of TensorFlow, gRPC, gym and Reverb are suppressed unless `RLDS2REVERB_LOG=1` is set in the environment.
"""

import pkgutil

import lazy_loader

from rlds2reverb.system.keras_version import select_keras_2
from rlds2reverb.system.logs import quiet_libraries
from rlds2reverb.system.replacements import explain_missing

__version__ = "0.1.0"

# Started in the root of a checkout, Python finds this folder before the installed package, which also contains the
# sub-packages adders, cli and so on.
__path__ = pkgutil.extend_path(__path__, __name__)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = explain_missing(__getattr__)

quiet_libraries()
select_keras_2()
