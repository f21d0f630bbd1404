"""Runs a command in a container for `kubectl exec`, which speaks WebSocket: each message begins
with the number of a stream."""

import base64
import hashlib
import json
import struct
import subprocess
import threading

PROTOCOL = "v5.channel.k8s.io"
STDOUT, STDERR, RESULT = 1, 2, 3
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 4.2.2.
BINARY, CLOSE = 0x82, 0x88


def _frame(kind, data):
    if len(data) < 126:
        head = struct.pack("!BB", kind, len(data))
    elif len(data) < 1 << 16:
        head = struct.pack("!BBH", kind, 126, len(data))
    else:
        head = struct.pack("!BBQ", kind, 127, len(data))
    return head + data


def _result(code):
    """What kubectl makes its own exit code of."""
    if code == 0:
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    cause = {"reason": "ExitCode", "message": str(code)}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with exit code {code}",
        "details": {"causes": [cause]},
    }


def serve(handler, container, command):
    """Answers a request of http.server. The command gets the container's network, files, user and
    environment, and no input."""
    handler.close_connection = True
    key = handler.headers.get("Sec-WebSocket-Key", "").encode()
    accept = base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode()
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Sec-WebSocket-Accept", accept)
    handler.send_header("Sec-WebSocket-Protocol", PROTOCOL)
    handler.end_headers()
    lock = threading.Lock()

    def send(kind, data):
        with lock:
            handler.wfile.write(_frame(kind, data))
            handler.wfile.flush()

    def copy(stream, number):
        while data := stream.read1(1 << 15):
            send(BINARY, bytes([number]) + data)

    process = subprocess.Popen(
        container.pod.words_inside(container, command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    pairs = [(process.stdout, STDOUT), (process.stderr, STDERR)]
    threads = [threading.Thread(target=copy, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    send(BINARY, bytes([RESULT]) + json.dumps(_result(process.wait())).encode())
    send(CLOSE, struct.pack("!H", 1000))
