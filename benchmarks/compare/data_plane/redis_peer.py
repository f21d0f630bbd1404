"""Redis 7 over loopback TCP, without persistence. Two clients: redis-py with hiredis, and a plain
socket loop that formats requests ahead and receives into the destination, which is what a client
written for this would do."""

import shutil
import socket
import sys
import tempfile

import redis

from child import Child, free_port, serve
from data import Data, gigabytes_per_second, keys_per_second


class RawClient:
    """RESP over one socket: `depth` GETs in flight, values received where they belong."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _exactly(self, view):
        while view:
            n = self._socket.recv_into(view)
            if n == 0:
                raise RuntimeError("Redis closed the connection")
            view = view[n:]

    def get(self, keys, views):
        self._socket.sendall(
            b"".join(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(k), k) for k in keys)
        )
        for view in views:
            head = b"$%d\r\n" % len(view)
            got = bytearray(len(head))
            self._exactly(memoryview(got))
            if got != head:
                raise RuntimeError(f"GET answered {bytes(got)!r}, expected {head!r}")
            self._exactly(view)
            end = bytearray(2)
            self._exactly(memoryview(end))

    def set(self, keys, views):
        for key, view in zip(keys, views):
            self._socket.sendall(
                b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key, len(view))
            )
            self._socket.sendall(view)
            self._socket.sendall(b"\r\n")
        for _ in keys:
            answer = bytearray(5)
            self._exactly(memoryview(answer))
            if answer != b"+OK\r\n":
                raise RuntimeError(f"SET answered {bytes(answer)!r}")


def main():
    kind = sys.argv[1]
    port, directory = free_port(), tempfile.mkdtemp(prefix="cairn-redis-")
    server = Child(
        [
            "redis-server",
            "--port",
            port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            directory,
            "--daemonize",
            "no",
            "--logfile",
            "",
        ],
        f"{directory}/redis.log",
        ready="Ready to accept connections",
    )
    data = Data()
    pool = redis.Redis(host="127.0.0.1", port=port, protocol=2)
    raw = RawClient(port)

    def views(array, size, first, count):
        return [memoryview(array)[i * size : (i + 1) * size] for i in range(first, first + count)]

    def names(first, count):
        return [b"k%d" % i for i in range(first, first + count)]

    def put_raw(size, first, count):
        raw.set(names(first, count), views(data.source, size, first, count))

    def get_raw(size, first, count):
        raw.get(names(first, count), views(data.destination, size, first, count))

    def put_py(size, first, count):
        pipe = pool.pipeline(transaction=False)
        for name, view in zip(names(first, count), views(data.source, size, first, count)):
            pipe.set(name, view)
        if not all(pipe.execute()):
            raise RuntimeError("SET failed")

    def get_py(size, first, count):
        pipe = pool.pipeline(transaction=False)
        for name in names(first, count):
            pipe.get(name)
        for view, value in zip(views(data.destination, size, first, count), pipe.execute()):
            view[:] = value

    put, get = (put_raw, get_raw) if kind == "raw" else (put_py, get_py)

    def exists(keys):
        pipe = pool.pipeline(transaction=False)
        for key in keys:
            pipe.exists(key)
        return sum(pipe.execute())

    def trial(what, size=0, batch=1, seconds=0.4):
        if what == "transfer":
            return gigabytes_per_second(
                data,
                size,
                batch,
                seconds,
                lambda f, n: put(size, f, n),
                lambda f, n: get(size, f, n),
            )
        keys = names(0, 4096)
        pool.mset({key: b"x" for key in keys})
        return keys_per_second(keys, batch, seconds, exists)

    try:
        serve([server.pid], trial)
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
