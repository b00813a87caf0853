"""Agents for offline and online learning, each a `tf_agents.agents.TFAgent`; `make_agent` creates one by name.

Networks are fully connected, with convolutions in front for images (`ImageNetwork`), or custom ones (`CustomNetwork`).
Continuous actions are vectors, and discrete actions are single integers. Every `train` accepts `weights`, and returns
the TD error of each item in `LossInfo.extra["td_error"]` if the algorithm has a critic.
"""

import lazy_loader

from rlds2reverb.system.keras_version import require_keras_2

require_keras_2()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
