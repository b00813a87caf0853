"""The process of one planned run; see `placement.run_in_processes`, which starts it."""

from __future__ import annotations

import json
import os
import signal
import sys

from rlds2reverb._server_process.launcher import end_with_parent


def main(parent: int) -> None:
    """Reads a pickled run from stdin, trains it, writes its outcome to stdout as JSON, and ends the process.

    Args:
      parent: id of the process that started this one; this process ends with it, however it ends.
    """
    end_with_parent(parent)
    result = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Anything that libraries print is not part of the result.
    import cloudpickle

    from rlds2reverb._system.signals import Terminated, raise_on_sigterm

    from .placement import Outcome, execute
    from .progress import Progress

    with raise_on_sigterm():
        try:
            run, run_dir, quiet, describe = cloudpickle.load(sys.stdin.buffer)
            outcome = execute(run, run_dir, Progress(quiet=quiet, describe=describe))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except Terminated:
            outcome = Outcome("stopped", 0, "SIGTERM")
        except Exception as error:  # Unpickling imports modules of users.
            outcome = Outcome("failed", 0, f"the run cannot be read in another process ({error}); run one at a time")
        json.dump(vars(outcome), result)
        result.close()
    sys.exit()
