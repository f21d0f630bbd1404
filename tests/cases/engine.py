"""An engine with OpenAI's API that takes everything, and keeps what it got."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Engine(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model="org/Model-7B"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.bodies, self.authorizations = model, [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": self.server.model, "object": "model"}]})

    def do_POST(self):
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.authorizations.append(self.headers["Authorization"])
        message = {"role": "assistant", "content": "hello"}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "text": "hello"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        self.answer({"id": "x", "model": self.server.model, "choices": [choice], "usage": usage})
