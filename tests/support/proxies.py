"""A proxy of a port, with connections that can break while the server keeps running."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards connections to a port, and breaks one after a given number of bytes from clients."""

    def __init__(self, port: int):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        #: Number of bytes that clients may still send before a connection breaks; None for no limit.
        self.bytes_until_break: int | None = None
        #: Number of connections that were broken.
        self.num_broken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._pairs.append((client, server))
                threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                if is_client and self.bytes_until_break is not None:
                    self.bytes_until_break -= len(content)
                    if self.bytes_until_break < 0:
                        self.bytes_until_break = None
                        self.num_broken += 1
                        break  # The bytes just received are lost.
                target.sendall(content)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self._listener, *(end for pair in self._pairs for end in pair)):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def run_proxy(port: int) -> Iterator[Proxy]:
    """Runs a proxy of a port."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
