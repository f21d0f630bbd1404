"""One trace of a request through router, worker and cache node, as a collector gets it; and
collectors that cost nothing."""

import json
import pathlib
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from programs import Programs, ask  # noqa: E402  (needs the path)
from waiting import wait_until  # noqa: E402

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"


class Collector:
    """Takes spans as a collector of OpenTelemetry does."""

    def __init__(self):
        self.spans = spans = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/json"
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for group in body["resourceSpans"]:
                    resource = {
                        a["key"]: a["value"]["stringValue"] for a in group["resource"]["attributes"]
                    }
                    for scope in group["scopeSpans"]:
                        spans.extend(
                            {**span, "service": resource["service.name"]} for span in scope["spans"]
                        )
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def named(self, *names):
        """The spans with these names, once each of them is there."""
        return wait_until(
            lambda: (
                {s["name"]: s for s in self.spans if s["traceId"] == TRACE}
                if {s["name"] for s in self.spans if s["traceId"] == TRACE}.issuperset(names)
                else None
            ),
            f"spans {names}",
        )


class Service:
    """A router before a worker with a cache node, whose spans go to a collector."""

    def __init__(self, programs, collector):
        tracing = ("--tracing.endpoint", collector)
        node = programs.node(*tracing).ready()
        # The path through shared memory carries no trace.
        cache = ("--cache", node["grpc"], "--cache.path", "grpc")
        self.worker = programs.worker(*tracing, *cache).ready()
        self.router = programs.router(self.worker["grpc"], *tracing).ready()
        self.url = "http://" + self.router["http"]
        wait_until(lambda: ask(self.url + "/health")[0] == 200, "a worker")

    def ask(self, prompt, **headers):
        body = {"prompt": prompt, "max_tokens": 3, "ignore_eos": True}
        status, _, answer = ask(self.url + "/v1/completions", body, headers)
        assert status == 200, answer
        return json.loads(answer)


def metric(program, name):
    lines = ask(f"http://{program['admin']}/metrics")[2].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.fixture
def programs(tmp_path):
    started = Programs(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.server.shutdown()


def test_the_spans_of_a_request_are_one_tree_whose_times_nest(programs, collector):
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    service = Service(programs, collector.url)
    service.ask(prompt)  # Its blocks go to the node.
    stored = 'cairn_worker_pushed_blocks_total{result="stored"}'
    wait_until(lambda: metric(service.worker, stored) > 0, "a stored block")
    service.ask(prompt, traceparent=TRACEPARENT)
    spans = collector.named("route", "Generate", "queue", "prefill", "decode", "Match")
    services = {name: spans[name]["service"] for name in ("route", "Generate", "prefill", "Match")}
    assert services == {
        "route": "cairn-router",
        "Generate": "cairn-worker",
        "prefill": "cairn-worker",
        "Match": "cairn-cache",
    }
    told = {a["key"]: a["value"] for a in spans["route"]["attributes"]}
    assert told["attempts"] == {"intValue": "1"}
    assert told["generated_tokens"] == {"intValue": "3"}
    assert told["http.response.status_code"] == {"intValue": "200"}
    assert int(told["prompt_tokens"]["intValue"]) > int(told["cached_tokens"]["intValue"]) > 0
    assert told["request_id"]["stringValue"].startswith("cmpl-")
    for span in spans.values():
        for attribute in span.get("attributes", []):
            assert attribute["value"] != {"stringValue": ""}, (span["name"], attribute)
    assert spans["route"]["parentSpanId"] == CALLER
    assert spans["Generate"]["parentSpanId"] == spans["route"]["spanId"]
    for name in ("queue", "prefill", "decode", "Match"):
        assert spans[name]["parentSpanId"] == spans["Generate"]["spanId"], name
    by_id = {span["spanId"]: span for span in spans.values()}
    for span in spans.values():
        begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        assert begin <= end, span["name"]
        if span["parentSpanId"] == CALLER:
            continue
        parent = by_id[span["parentSpanId"]]
        # Clocks are read one after the other, and a process may stop in between.
        slack = 5_000_000
        assert begin >= int(parent["startTimeUnixNano"]) - slack, span["name"]
        assert end <= int(parent["endTimeUnixNano"]) + slack, span["name"]


def test_a_caller_decides_and_a_malformed_trace_is_passed_over(programs, collector):
    service = Service(programs, collector.url)
    service.ask("a", traceparent=f"00-{TRACE}-{CALLER}-00")
    service.ask("b", traceparent="00-" + "x" * 1000)
    # That of the request whose trace says nothing.
    wait_until(lambda: any(s["name"] == "route" for s in collector.spans), "a span")
    assert not [span for span in collector.spans if span["traceId"] == TRACE]


def test_a_request_that_is_refused_has_a_span_with_its_error(programs, collector):
    service = Service(programs, collector.url)
    body = {"prompt": "a", "n": 2}
    headers = {"traceparent": TRACEPARENT, "x-cairn-trace": "mine"}
    assert ask(service.url + "/v1/completions", body, headers)[0] == 400
    span = collector.named("route")["route"]
    assert "'n'" in span["status"]["message"]
    told = {a["key"]: a["value"] for a in span["attributes"]}
    assert told["http.response.status_code"] == {"intValue": "400"}
    assert told["trace_word"] == {"stringValue": "mine"}


def silent():
    """Takes connections and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def away():
    listener, url = silent()
    listener.close()
    return listener, url


@pytest.mark.parametrize("kind", [silent, away])
def test_a_collector_that_does_not_answer_costs_spans_alone(programs, kind):
    listener, url = kind()
    with listener:
        service = Service(programs, url)
        for number in range(20):
            assert service.ask(f"prompt {number}")["usage"]["completion_tokens"] == 3
        if kind is away:
            failed = 'cairn_trace_spans_total{result="failed"}'
            wait_until(lambda: metric(service.router, failed) > 0, "a span that nobody took")
        assert metric(service.router, 'cairn_trace_spans_total{result="sent"}') == 0


def test_an_endpoint_that_is_no_address_is_refused(programs):
    program = programs.node("--tracing.endpoint", "collector:4318")
    assert program.ready() is None
    assert "tracing.endpoint" in program.stderr()
