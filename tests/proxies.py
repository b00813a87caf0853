"""A connection that can break while the server lives: everything to a port goes through here."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards connections to a port, and swallows what clients send from a given number of bytes on."""

    def __init__(self, port: int):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        #: Bytes that clients may still send before a connection breaks; None for no end.
        self.left: int | None = None
        #: Connections that were broken.
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
                if is_client and self.left is not None:
                    self.left -= len(content)
                    if self.left < 0:
                        self.left = None
                        self.num_broken += 1
                        break  # what was just received is lost
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
def proxied(port: int) -> Iterator[Proxy]:
    """A proxy of a port."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
