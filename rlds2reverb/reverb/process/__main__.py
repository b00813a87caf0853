"""Runs the launcher of servers: `python FOLDER DESCRIPTOR [PATH ...]`, or `python -m` with the name of this package.

DESCRIPTOR is the number of the inherited socket of `launcher.run`; the PATHs replace `sys.path`.
"""

import importlib.util
import sys
from pathlib import Path

if not __package__:  # Makes this folder a package without importing rlds2reverb, which may not be installed here.
    folder = Path(__file__).parent
    spec = importlib.util.spec_from_file_location(
        "rlds2reverb_server", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.remove(str(folder))
    __package__ = spec.name

sys.path[:] = sys.argv[2:] or sys.path
importlib.import_module(".launcher", __package__).run(int(sys.argv[1]))
