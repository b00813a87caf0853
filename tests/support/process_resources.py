"""Functions that list what a process holds, according to /proc: children, file descriptors and shared memory.

Threads of earlier tests in the same process may end meanwhile, and gRPC may still connect to their servers.
"""

import collections
import os
from contextlib import suppress
from pathlib import Path


def find_children(pid):
    """Returns the process ids of the children of a process."""
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # The thread has ended.
            children += map(int, (task / "children").read_text().split())
    return children


def list_resources(pid):
    """Returns the children, file descriptors, and shared memory of a process, with their numbers.

    TCP sockets and event descriptors, which gRPC opens, are left out.
    """
    maps = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "rlds2reverb" in line]
    links = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # The descriptor of the directory itself.
            links.append(os.readlink(file))
    unix_sockets = {f"socket:[{line.split()[6]}]" for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    links = [link for link in links if link != "anon_inode:[eventfd]"]
    others = [link for link in links if not link.startswith("socket:") or link in unix_sockets]
    return collections.Counter([*find_children(pid), *maps, *others])
