"""A TCP proxy that lets a given number of bytes a second through, from the server to its
clients."""

import socket
import threading
import time

CHUNK = 64 << 10
# The bytes that the kernel holds back of a throttled stream: more would be sent on after the
# receiver has given up.
BUFFER = 128 << 10


class Throttle:
    """Listens on a port of its own. `rate`: bytes a second to all clients together; may be changed
    at any time. Use as a context manager."""

    def __init__(self, target, rate=1e12):
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self.rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for s in [self._listener, *self._sockets]:
            s.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            for s in (client, server):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            self._sockets += [client, server]
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source, sink, throttled):
        try:
            while data := source.recv(CHUNK):
                if throttled:
                    self._pay(len(data))
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _pay(self, count):
        """Waits for the bytes' turn. A millisecond may be run ahead: sleeping is not more exact
        than that."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count / self.rate
            wait = self._free_at - now
        if wait > 0.001:
            time.sleep(wait)
