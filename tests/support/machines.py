"""Machines of a test's own: network namespaces, in which programs run and connections are cut."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest
from faults import use_own_launcher


@contextmanager
def machine(*prefix: str) -> Iterator[list[str]]:
    """Starts a machine that has no network but its loopback interface; skips the test where that is not permitted.

    Args:
      prefix: the prefix of an existing machine with the same user, or nothing.

    Yields:
      The prefix of a command that runs a program on the machine.
    """
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("requires the programs ip, unshare and nsenter")
    user = () if prefix else ("--user", "--map-root-user")
    program = [*prefix, "unshare", *user, "--net", "sh", "-c", "echo started; exec cat"]  # Until this process ends.
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    running = subprocess.Popen(program, **pipes, text=True)
    try:
        if running.stdout.readline() != "started\n":
            pytest.skip(f"network namespaces are not permitted here ({running.stderr.read().strip()})")
        enter = ["nsenter", "--target", str(running.pid), "--user", "--net", "--preserve-credentials"]
        execute(*enter, "ip", "link", "set", "lo", "up")
        yield enter
    finally:
        end(running)


@contextmanager
def two_machines(near_address: str, far_address: str) -> Iterator[tuple[list[str], list[str]]]:
    """Starts two machines in one network; yields the prefix of each."""
    with machine() as near, machine(*near) as far:
        try:
            execute(*near, "ip", "link", "add", "inner", "type", "veth", "peer", "name", "outer")
            execute(*near, "ip", "link", "set", "outer", "netns", far[2])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"virtual networks are not permitted here ({error.stderr.strip()})")
        for prefix, device, address in ((near, "inner", near_address), (far, "outer", far_address)):
            execute(*prefix, "ip", "address", "add", f"{address}/24", "dev", device)
            execute(*prefix, "ip", "link", "set", device, "up")
        yield near, far


@contextmanager
def network_cut(prefix: Sequence[str], ports: Sequence[int], versions: Sequence[str] = ("-4", "-6")) -> Iterator[None]:
    """Drops every packet from and to the ports of a machine, as when a cable is pulled: connections remain open.

    Args:
      prefix: prefix of the machine.
      ports: the ports.
      versions: options of `ip` for the protocols, IPv4 and IPv6.
    """
    ends = [(version, end, str(port)) for version in versions for end in ("sport", "dport") for port in ports]
    for version in versions:
        # The rule for the machine's own addresses comes first by default, and would let the packets pass.
        execute(*prefix, "ip", version, "rule", "add", "pref", "100", "lookup", "local")
        execute(*prefix, "ip", version, "rule", "del", "pref", "0")
    for version, end, port in ends:
        execute(*prefix, "ip", version, "rule", "add", "pref", "10", end, port, "blackhole")
    try:
        yield
    finally:
        for version, end, port in ends:
            execute(*prefix, "ip", version, "rule", "del", "pref", "10", end, port, "blackhole")
        for version in versions:
            execute(*prefix, "ip", version, "rule", "add", "pref", "0", "lookup", "local")
            execute(*prefix, "ip", version, "rule", "del", "pref", "100")


def run_on(channel: Connection, prefix: Sequence[str], program: Callable[..., None], *arguments: Any) -> None:
    """Runs a program of `faults.process` on a machine."""
    use_own_launcher()
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("user", "net"):
        with open(f"/proc/{prefix[2]}/ns/{name}") as namespace:
            if libc.setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    program(channel, *arguments)


def execute(*command: str) -> str:
    """Returns the output of a program."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout.strip()


def end(running: subprocess.Popen) -> None:
    """Kills a program and closes its streams."""
    running.kill()
    running.wait()
    for stream in (running.stdin, running.stdout, running.stderr):
        if stream is not None:
            stream.close()
