"""Machines of a test's own: network namespaces, in which programs run and connections are cut."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest


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
    program = [*prefix, "unshare", *user, "--net", "sh", "-c", "echo started; exec sleep 1200"]
    running = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
def network_cut(prefix: Sequence[str], ports: Sequence[int]) -> Iterator[None]:
    """Drops every packet from and to the ports of a machine, as when a cable is pulled: connections remain open."""
    # The rule for addresses of the machine itself comes first by default, and would let the packets pass.
    local = ["ip", "rule", "{}", "pref", "100", "lookup", "local"]
    drop = [["ip", "rule", "{}", "pref", "10", end, str(port), "blackhole"] for port in ports for end in ("sport", "dport")]
    execute(*prefix, *[word.format("add") for word in local])
    execute(*prefix, "ip", "rule", "del", "pref", "0")
    for each in drop:
        execute(*prefix, *[word.format("add") for word in each])
    try:
        yield
    finally:
        for each in drop:
            execute(*prefix, *[word.format("del") for word in each])
        execute(*prefix, "ip", "rule", "add", "pref", "0", "lookup", "local")
        execute(*prefix, *[word.format("del") for word in local])


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
