"""The choice of the number of processes that step a batch of environments, by measurement."""

from __future__ import annotations

import hashlib
import math
import statistics
import threading
import time

import numpy as np

from rlds2reverb.system.platform import available_cores

from .env_specs import sample_action
from .environment import Environment

#: Duration of the measurement of steps, and minimum number of them.
_TRIAL_SECS, _MIN_STEPS = 0.03, 3
#: Time per step of the batch that workers must save, to be worth the exchange of actions and time steps.
_EXCHANGE_SECS = 2e-5
#: Work of each thread in the measurement of free cores: longer than the time slices of the operating system.
_HASHED_BYTES = 16 << 20
#: How often free cores are counted, unless all are free.
_MAX_TRIALS = 3
#: Cores that are this close to being free count as free.
_TOLERANCE = 0.3


def choose_num_workers(env: Environment, num_envs: int) -> int | None:
    """Returns the number of workers that step a batch fastest, in addition to the calling process.

    Workers pay where a step costs more than the exchange with them, and only on cores that no other process uses: all
    processes of a batch wait for the one that is not running. Both are measured, in 0.1 to 0.2 s.

    Args:
      env: an environment like those of the batch, which is stepped with random actions.
      num_envs: number B of environments in the batch.

    Returns:
      The number; None if the environment cannot be tried, for example because its actions have no bounds.
    """
    num_processes = min(available_cores(), num_envs)
    try:
        step_secs = measure_step(env)
    except Exception:  # What fails in a batch is created again there.
        return None
    saved = (num_envs - math.ceil(num_envs / num_processes)) * step_secs
    if saved < _EXCHANGE_SECS:
        return 0
    free = 0.0
    for _ in range(_MAX_TRIALS):  # Threads of an idle computer sometimes begin on the same core.
        free = max(free, count_free_cores(num_processes) + _TOLERANCE)
        if free >= num_processes:
            break
    return max(math.floor(free), 1) - 1


def measure_step(env: Environment) -> float:
    """Returns the median duration of a step in seconds."""
    random = np.random.default_rng(0)
    durations: list[float] = []
    env.reset()
    end = time.perf_counter() + _TRIAL_SECS
    while len(durations) < _MIN_STEPS or time.perf_counter() < end:
        action = sample_action(env.action_spec(), random)
        start = time.perf_counter()
        env.step(action)
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def count_free_cores(num_threads: int) -> float:
    """Returns how many cores threads of this process get at once, in (0, `num_threads`]."""
    block = bytes(_HASHED_BYTES)
    # Hashing releases the lock of the interpreter.
    threads = [threading.Thread(target=hashlib.sha256, args=(block,)) for _ in range(num_threads)]
    start, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.process_time() - used) / (time.perf_counter() - start)
