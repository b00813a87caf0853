"""Tests of isolated ports: reachable from this machine, and not from another one (a network namespace)."""

import contextlib
import ctypes
import errno
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.reduction import DupFd
from pathlib import Path

import internals
import portpicker
import pytest
from faults import find_server, process
from machines import end, execute, two_machines

from rlds2reverb.cli import run
from rlds2reverb.reverb.process import isolation, launcher
from rlds2reverb.reverb.process.isolation import isolate_port
from rlds2reverb.reverb.server import process as server_process
from rlds2reverb.reverb.server.ports import batch_port, require_free_port
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.server.sharded_server import ShardedReplayServer
from rlds2reverb.types.tables import TableConfig

#: The system call that copies a file descriptor of a different process.
_PIDFD_GETFD = 438
NEAR, FAR, PORT = "10.99.0.1", "10.99.0.2", 26_400


def bound_interfaces(port, pid=None):
    """Returns the interfaces that the listening sockets of a port of a process are bound to."""
    pid = pid or os.getpid()
    links = {
        f"socket:[{tcp_socket.inode}]"
        for tcp_socket in isolation.read_sockets(port)
        if tcp_socket.state == isolation.LISTEN
    }
    process, found = os.pidfd_open(pid), []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(path) in links:
                copy = ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, int(path.name), 0)
                with socket.socket(fileno=copy) as listener:
                    found.append(listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16))
    os.close(process)
    return found


def bound_interfaces_of(server):
    """Returns the interfaces that a server's two ports are bound to."""
    return [bound_interfaces(port, find_server(server.port)) for port in (server.port, batch_port(server.port))]


# --- sockets


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")])
def test_isolated_port_accepts_connections_from_this_machine(family, host):
    with socket.create_server((host, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        isolate_port(port)
        isolate_port(port)  # Idempotent.
        assert bound_interfaces(port) == [b"lo\0"]
        for address in ("127.0.0.1", "::1")[: 1 + (family == socket.AF_INET6)]:
            with socket.create_connection((address, port), timeout=10), listener.accept()[0] as accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16) == b"lo\0"


def test_a_port_without_a_listener_raises():
    with pytest.raises(OSError, match=r"cannot be isolated \(this process does not listen on it\); use Linux 5.7"):
        isolate_port(portpicker.pick_unused_port())


def test_a_connection_that_is_never_accepted_raises(monkeypatch):
    monkeypatch.setattr(isolation, "ACCEPT_SECS", 0)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        with pytest.raises(OSError, match="a connection was not established within 0 s"):
            isolate_port(listener.getsockname()[1])


# --- servers


def refuse(own):
    raise PermissionError(errno.EPERM, "Operation not permitted")


def launch_without_isolation(channel, descriptor):
    """Launches servers whose ports cannot be isolated."""
    setattr(isolation, internals.BIND, refuse)
    launcher.run(descriptor.detach())


@pytest.fixture
def no_isolation(monkeypatch):
    """Makes the kernel refuse to bind the sockets of this process's servers."""
    control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control, process(launch_without_isolation, DupFd(other.fileno())):
        other.close()
        monkeypatch.setattr(server_process, internals.FORK_SERVER, partial(server_process.fork_server, control))
        yield


@pytest.mark.slow
def test_a_server_that_cannot_be_isolated_does_not_keep_running(no_isolation):
    port = portpicker.pick_unused_port()
    with pytest.raises(OSError, match=rf"port {port} cannot be isolated \(Operation not permitted\)"):
        ReplayServer([TableConfig()], port=port, isolate=True)
    require_free_port(port)
    require_free_port(batch_port(port))


def test_serve_reports_that_it_cannot_isolate_the_port(no_isolation, capsys):
    assert run(["serve", "--isolate"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "cannot be isolated" in lines[0] and "block the port with a firewall" in lines[0]


def test_a_server_stays_isolated_when_it_loads_data(tmp_path):
    with ReplayServer([TableConfig()], isolate=True) as server:
        assert server.is_isolated and bound_interfaces_of(server) == [[b"lo\0"]] * 2
        server.save_data(tmp_path / "saved")
        server.load_data(tmp_path / "saved")
        assert bound_interfaces_of(server) == [[b"lo\0"]] * 2
    with ReplayServer([TableConfig()], serve_batches=True) as server:
        assert not server.is_isolated and bound_interfaces_of(server) == [[b""]] * 2


def test_all_shards_are_isolated():
    with ShardedReplayServer([TableConfig()], num_shards=2, isolate=True) as server:
        assert server.is_isolated
        assert [bound_interfaces_of(shard) for shard in server.servers] == [[[b"lo\0"]] * 2] * 2


# --- another machine


@contextmanager
def running_program(command, announcement):
    """Runs a program until the end of the context; yields once it has printed a line that starts with a word."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = subprocess.Popen(command, text=True, bufsize=1, **pipes)
    try:
        lines = []
        for line in running.stdout:
            lines.append(line)
            if line.startswith(announcement):
                break
        else:
            pytest.fail("".join(lines))
        yield running, line
    finally:
        end(running)


CONNECT = f"""
import socket, sys
try:
    with socket.create_connection(("{NEAR}", {PORT}), timeout=5):
        print("connected")
except OSError as error:
    print("refused", error)
"""
USE_TABLE = """
import sys
import numpy as np
import reverb
for number, address in enumerate(sys.argv[1:]):
    client = reverb.Client(address)
    assert list(client.server_info(timeout=60)) == ["replay"]
    client.insert([np.full(3, number)], {"replay": 1.0})
    (step,), = client.sample("replay", 1)
    print(step.data[0].tolist())
"""


@pytest.mark.slow
@pytest.mark.drill("F25")
@pytest.mark.parametrize("is_isolated", [True, False])
def test_served_port_is_reachable_from_other_machines_unless_isolated(is_isolated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--table", "replay", "--sampler", "lifo", "--port", str(PORT), *(["--isolate"] if is_isolated else [])]
    python = sys.executable
    with two_machines(NEAR, FAR) as (near, far):
        with running_program([*near, python, "-m", "rlds2reverb.cli", "serve", *options], "serving on") as (_, line):
            assert ("for this machine only" in line) is is_isolated
            assert ("other machines can reach the port without authentication" in line) is not is_isolated
            assert execute(*far, python, "-c", CONNECT).startswith("refused" if is_isolated else "connected")
            # An isolated port is closed at the machine's own address in the network as well.
            assert execute(*near, python, "-c", CONNECT).startswith("refused" if is_isolated else "connected")
            addresses = [f"{host}:{PORT}" for host in ("localhost", "127.0.0.1", "[::1]")]
            used = execute(*near, python, "-c", USE_TABLE, *addresses)
            assert used.splitlines() == [str([number] * 3) for number in range(3)]
            if not is_isolated:
                assert execute(*far, python, "-c", USE_TABLE, f"{NEAR}:{PORT}") == "[0, 0, 0]"


LISTEN = f"""
import socket
from rlds2reverb.reverb.process.isolation import isolate_port
with socket.create_server(("", {PORT})) as listener:
    print("listening", flush=True)
    accepted = [listener.accept()[0], listener.accept()[0]]
    for each in accepted:
        assert each.recv(10) == b"before"
    isolate_port({PORT})
    print("isolated", flush=True)
    input()
    for each in accepted:
        each.settimeout(3)
        try:
            print(each.recv(10))
        except TimeoutError:
            print("nothing", flush=True)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
    connection.sendall(b"before")
    print("sent", flush=True)
    input()
    connection.sendall(b"after")
    input()
"""


@pytest.mark.slow
@pytest.mark.drill("F25")
def test_connections_of_other_machines_from_before_are_cut_off():
    python = sys.executable
    with (
        two_machines(NEAR, FAR) as (near, far),
        running_program([*near, python, "-c", LISTEN], "listening") as (listener, _),
    ):
        senders = []
        with ExitStack() as stack:
            for prefix, host in ((far, NEAR), (near, "127.0.0.1")):
                command = [*prefix, python, "-c", SEND, host, str(PORT)]
                senders.append(stack.enter_context(running_program(command, "sent"))[0])
            assert listener.stdout.readline() == "isolated\n"
            for program in (*senders, listener):
                program.stdin.write("continue\n")
            assert [listener.stdout.readline() for _ in range(2)] == ["nothing\n", "b'after'\n"]
