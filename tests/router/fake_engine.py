"""Engines with OpenAI's API for tests: they answer with words, and misbehave when told.

`POST /_behave` with JSON sets what the next calls meet:
  status         answers so, with an error body
  wrong_json     a 200 whose body is not JSON
  huge_head      a head without end
  endless        a whole answer without end
  silent         takes the request and says nothing
  break_after    a stream ends, with its connection, after this many events; 0: before the first
  health         status of GET /health
  wait           seconds before the first token
  gap            seconds between tokens
`GET /_calls` lists the bodies, headers and paths of all calls so far.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Engine(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, model="fake", key=None, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.model = model
        self.key = key
        self.behaviour = {}
        self.once = []  # What the next generations meet instead, one each. Engines may share it.
        self.calls = []
        self.cancelled = 0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # A client that goes is what some tests are about.


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def answer(self, status, value, headers=()):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in headers:
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        engine = self.server
        if self.path == "/health":
            return self.answer(engine.behaviour.get("health", 200), {})
        if self.path == "/_calls":
            with engine.lock:
                return self.answer(200, {"calls": engine.calls, "cancelled": engine.cancelled})
        if self.path != "/v1/models":
            return self.answer(404, {})
        if engine.key and self.headers.get("Authorization") != f"Bearer {engine.key}":
            return self.answer(401, {"error": {"message": "wrong key"}})
        model = {"id": engine.model, "object": "model", "owned_by": "fake", "max_model_len": 4096}
        return self.answer(200, {"object": "list", "data": [model]})

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # Trailers.
        return body

    def do_POST(self):
        engine = self.server
        body = self.body()
        if self.path == "/_behave":
            engine.behaviour = json.loads(body)
            return self.answer(200, {})
        with engine.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            engine.calls.append({"path": self.path, "body": body.decode(), "headers": headers})
        request = json.loads(body)
        if self.path == "/tokenize":
            text = request.get("prompt") or "".join(m["content"] for m in request["messages"])
            return self.answer(200, {"tokens": [ord(c) for c in text], "count": len(text)})
        try:
            behaviour = engine.once.pop(0)
        except IndexError:
            behaviour = engine.behaviour
        return self.generate(request, behaviour)

    def generate(self, request, behaviour):
        if "status" in behaviour:
            error = {"error": {"message": "as told", "type": "told", "code": behaviour["status"]}}
            return self.answer(behaviour["status"], error, [("Retry-After", "7")])
        if behaviour.get("wrong_json"):
            return self.answer(200, b"<html>not JSON</html>")
        if behaviour.get("huge_head"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * (1 << 20))
            self.close_connection = True
            return None
        if behaviour.get("endless"):
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b"x" * 65536)
        if behaviour.get("silent"):
            self.close_connection = True
            return self.wait_for_end()
        time.sleep(behaviour.get("wait", 0))
        words = [f" word{i}" for i in range(request.get("max_tokens", 4))]
        usage = {"prompt_tokens": 7, "completion_tokens": len(words), "total_tokens": 0}
        chat = self.path.endswith("chat/completions")
        if not request.get("stream"):
            text = "".join(words)
            choice = {"index": 0, "finish_reason": "stop"}
            choice.update(
                {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            )
            return self.answer(
                200, {"id": "x", "model": self.server.model, "choices": [choice], "usage": usage}
            )
        return self.stream(words, usage, chat, request, behaviour)

    def stream(self, words, usage, chat, request, behaviour):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def event(value):
            data = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        try:
            for i, word in enumerate(words):
                if i == behaviour.get("break_after"):
                    self.close_connection = True
                    return
                if i:
                    time.sleep(behaviour.get("gap", 0))
                choice = (
                    {"index": 0, "delta": {"content": word}} if chat else {"index": 0, "text": word}
                )
                event({"id": "x", "model": self.server.model, "choices": [choice]})
            if (request.get("stream_options") or {}).get("include_usage"):
                event({"id": "x", "choices": [], "usage": usage})
            event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            with self.server.lock:
                self.server.cancelled += 1
            self.close_connection = True

    def wait_for_end(self):
        self.connection.recv(1)
        with self.server.lock:
            self.server.cancelled += 1


if __name__ == "__main__":
    if not sys.argv[1:] or not all(port.isdigit() for port in sys.argv[1:]):
        sys.exit("usage: fake_engine.py PORT...")
    engines = [Engine(port=int(port)) for port in sys.argv[1:]]
    print(*(engine.url for engine in engines), flush=True)
    threading.Event().wait()
