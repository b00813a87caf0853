"""Tests of what works without Linux: everything but servers. Linux stands in for another system without its calls."""

import subprocess
import sys
import textwrap

import pytest
from trained_runs import DATA

PROGRAM = textwrap.dedent(
    """
    import ctypes, mmap, os, platform, select, sys, sysconfig
    import gymnasium, h5py, tensorflow, tf_agents

    sysconfig.get_config_vars()  # Python's own, which other platforms have, too.
    for module, names in (
        (os, ["sched_getaffinity", "memfd_create", "posix_fallocate", "register_at_fork", "pidfd_open", "O_NOFOLLOW"]),
        (mmap, ["MAP_ANONYMOUS", "MADV_HUGEPAGE"]),
        (select, ["epoll"]),
        (ctypes, ["CDLL"]),
    ):
        for name in names:
            delattr(module, name)
    real_open = os.open
    def open_nothing_of_linux(path, *arguments, **options):
        assert not str(path).startswith("/proc"), path
        return real_open(path, *arguments, **options)
    os.open = open_nothing_of_linux
    sys.platform = "darwin"
    sys.modules["reverb"] = None
    platform.system, platform.machine = lambda: "Darwin", lambda: "arm64"

    import numpy as np
    import rlds2reverb
    from rlds2reverb import ReplayServer, TableConfig, ingest, load, train
    from rlds2reverb.envs import ParallelEnvironment, load as load_environment
    from rlds2reverb.replay import BufferConfig, ReplayBuffer
    from rlds2reverb.datasets import summarize

    data, folder = sys.argv[1:]
    summarize(load(data))
    assert ingest(data, folder + "/items").items
    with ReplayBuffer("agent", BufferConfig("naive", 10), mmap_dir=folder + "/rows") as buffer:
        buffer.extend_columns({"x": np.arange(3.0)})
        assert buffer.sample_batch(2)
    run = train(
        data, "td3_bc", folder + "/run", steps=4, batch_size=4, env="Pendulum-v1", eval_episodes=2, eval_every=4,
        eval_max_episode_steps=3, progress=False,
    )
    assert list(run.evaluations["step"]) == [0, 4]
    with load_environment("Pendulum-v1", num_parallel=2, parallel_options={"num_workers": 2}) as envs:
        assert envs.reset().observation.shape == (2, 3)
    try:
        ReplayServer([TableConfig()])
    except rlds2reverb.ServerUnavailableError as error:
        print(error)
    """
)


@pytest.mark.slow
def test_everything_but_servers_works_without_linux(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, DATA, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Reverb servers run on Linux x86-64 only, and this is Darwin arm64" in done.stdout
