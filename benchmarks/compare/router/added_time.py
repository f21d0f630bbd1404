"""The time that a router adds to the first event, at a low rate before an engine that answers at
once; and its memory with many open streams."""

import json
import socket
import time
import urllib.parse

TEXT = "A cache holds what was computed before, so that nobody computes it again. " * 26
PAUSE_SECONDS = 0.002


def message(url, number):
    """About 2 KB, of which the end differs."""
    body = json.dumps(
        {
            "model": "simulated",
            "messages": [{"role": "user", "content": f"{TEXT} Question {number}?"}],
            "max_tokens": 16,
            "stream": True,
        }
    ).encode()
    parts = urllib.parse.urlsplit(url)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def connect(url):
    parts = urllib.parse.urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_until(connection, end, text=b""):
    while end not in text:
        data = connection.recv(65536)
        if not data:
            raise RuntimeError(f"the connection ended after {text[:300]!r}")
        text += data
    return text


def first_event_seconds(url, count, begin):
    """The times of `count` requests, one after the other over one connection."""
    seconds = []
    with connect(url) as connection:
        for number in range(begin, begin + count):
            request = message(url, number)
            time.sleep(PAUSE_SECONDS)
            sent = time.perf_counter()
            connection.sendall(request)
            text = read_until(connection, b"data: ")
            seconds.append(time.perf_counter() - sent)
            # The chunk that ends the body.
            text = read_until(connection, b"[DONE]\n\n", text)
            while not text.endswith(b"0\r\n\r\n"):
                text += connection.recv(65536)
    return seconds


def open_streams(url, count):
    """Connections with a stream each that has had its first event and goes on."""
    connections = []
    for number in range(count):
        connections.append(connect(url))
        connections[-1].sendall(message(url, number))
        if number % 50 == 49:  # Few at a time: listeners have short queues.
            for connection in connections[-50:]:
                read_until(connection, b"data: ")
    for connection in connections[count // 50 * 50 :]:
        read_until(connection, b"data: ")
    return connections
