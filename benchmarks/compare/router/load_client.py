"""Sends the requests of a trace at their times over HTTP, and takes the times of what comes back.

An open loop: a request is sent when it is due, whatever became of those before it.
"""

import asyncio
import gc
import json
import time
import urllib.parse


class Answer:
    """The outcome of a request. Seconds since the beginning of the run; None: it did not come."""

    __slots__ = ("due", "sent", "first", "end", "status", "prompt_tokens", "cached_tokens", "error")

    def __init__(self, due):
        self.due = due
        self.sent = self.first = self.end = None
        self.status = 0
        self.prompt_tokens = self.cached_tokens = 0
        self.error = ""


class Connection(asyncio.Protocol):
    """One answer at a time, of server-sent events."""

    def __init__(self, client):
        self.client = client
        self.transport = None
        self.answer = None
        self.text = b""

    def connection_made(self, transport):
        self.transport = transport

    def send(self, answer, message):
        self.answer, self.text = answer, b""
        answer.sent = self.client.now()
        self.transport.write(message)

    def data_received(self, data):
        answer = self.answer
        if answer is None:
            return
        self.text += data
        if answer.first is None and b"data: " in self.text:
            answer.first = self.client.now()
        # The last chunk of a body without a known length, or an answer that is no stream.
        if self.text.endswith(b"0\r\n\r\n") or (answer.first is None and self._whole()):
            self._done("")

    def _whole(self):
        head, found, body = self.text.partition(b"\r\n\r\n")
        lines = [line.lower() for line in head.split(b"\r\n")]
        length = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        return bool(found and length and len(body) >= length[0])

    def connection_lost(self, exc):
        if self.answer is not None:
            self._done(f"the connection ended: {exc}")
        self.client.idle.discard(self)

    def _done(self, error):
        answer, self.answer = self.answer, None
        answer.end = self.client.now()
        answer.error = error
        if self.text.startswith(b"HTTP/1.1 "):
            answer.status = int(self.text[9:12])
        usage = self.text.rfind(b'"usage":{')
        if usage >= 0:
            text = self.text[usage + 8 :].decode()
            numbers, _ = json.JSONDecoder().raw_decode(text)
            answer.prompt_tokens = numbers["prompt_tokens"]
            answer.cached_tokens = (numbers.get("prompt_tokens_details") or {}).get(
                "cached_tokens", 0
            )
        elif not error:
            answer.error = self.text[-300:].decode(errors="replace")
        if not error:
            self.client.idle.add(self)
        self.client.ended()


class Client:
    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.idle = set()
        self.began = 0.0
        self.open = 0
        self.all_ended = None

    def now(self):
        return time.monotonic() - self.began

    def ended(self):
        self.open -= 1
        if self.open == 0:
            self.all_ended.set()

    async def start(self, answer, message):
        if self.idle:
            connection = self.idle.pop()
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(
                lambda: Connection(self), self.host, self.port
            )
        connection.send(answer, message)

    def message(self, request):
        body = json.dumps(
            {
                "model": "simulated",
                "prompt": request.text(),
                "max_tokens": request.output_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def play(self, requests, compression, seconds_after):
        messages = [self.message(request) for request in requests]
        answers = [Answer(request.arrival / compression) for request in requests]
        self.all_ended = asyncio.Event()
        self.open = len(requests)
        tasks = set()
        self.began = time.monotonic() + 0.2
        for answer, message in zip(answers, messages):
            wait = answer.due - self.now()
            if wait > 0:
                await asyncio.sleep(wait)
            task = asyncio.ensure_future(self.start(answer, message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        try:
            await asyncio.wait_for(self.all_ended.wait(), seconds_after)
        except TimeoutError:
            pass
        for connection in list(self.idle):
            connection.transport.abort()
        return answers


def play(url, requests, compression, seconds_after=60):
    """The answers. Those that did not end within this many seconds after the last request have no
    `end`."""
    gc.collect()
    gc.disable()
    try:
        return asyncio.run(Client(url).play(requests, compression, seconds_after))
    finally:
        gc.enable()
