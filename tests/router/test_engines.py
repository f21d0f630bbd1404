"""cairn-router before engines with OpenAI's API: what passes, who gets it, and what becomes of
engines that misbehave."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import openai
import pytest
from fake_engine import Engine

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from ports import free_port  # noqa: E402  (needs the path)

BUILD = pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release"))
PATIENCE = 120  # Seconds, which only a bug reaches.


class Router:
    """A real cairn-router on free ports."""

    def __init__(self, urls, *settings):
        self.process = subprocess.Popen(
            [
                BUILD / "bin/cairn-router",
                *("--workers", ",".join(urls), "--listen", "127.0.0.1:0"),
                *("--http.listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"),
                *("--policy", "cost", *settings),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ready = self.process.stdout.readline().split()
        ports = dict(word.split("=", 1) for word in ready if "=" in word)
        self.http, self.admin = ports["http"], ports["admin"]

    def call(self, path, body=None, headers=()):
        """Status, headers and body of one call."""
        connection = http.client.HTTPConnection(self.http, timeout=PATIENCE)
        with contextlib.closing(connection):
            text = json.dumps(body) if isinstance(body, dict) else body
            sent = {"Content-Type": "application/json", **dict(headers)}
            connection.request("POST" if body else "GET", path, text, sent)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def wait(self, done):
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end
            time.sleep(0.01)

    def metric(self, line):
        connection = http.client.HTTPConnection(self.admin, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            for each in connection.getresponse().read().decode().splitlines():
                if each.startswith(line + " "):
                    return float(each.rsplit(" ", 1)[1])
        raise AssertionError(line)

    def count(self, line):
        """As metric, of a counter that may not have begun."""
        try:
            return self.metric(line)
        except AssertionError:
            return 0

    def resident(self):
        """Bytes of memory now, and the most that it ever had."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return tuple(int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))

    def ready(self, count):
        self.wait(lambda: self.metric('cairn_router_workers{condition="ready"}') == count)
        return self

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()
        return code


@pytest.fixture
def engines():
    pair = [Engine(), Engine()]
    yield pair
    for engine in pair:
        engine.shutdown()
        engine.server_close()


@pytest.fixture
def start_router(engines):
    """Starts a router that takes an engine for silent after so long."""
    started = []

    def start(silence="60s", *settings):
        small = ["--engines.max_answer", "1MiB", "--engines.text_block", "16B"]
        router = Router([e.url for e in engines], "--engines.silence", silence, *small, *settings)
        started.append(router)
        return router.ready(2)

    yield start
    for router in started:
        assert router.stop() == 0


@pytest.fixture
def router(start_router):
    return start_router()


def prompt(text="hello", **more):
    return {"model": "fake", "prompt": text, **more}


def meet_first(engines, behaviour):
    """The next request meets it at whichever of these engines the router asks first."""
    shared = [behaviour]
    for engine in engines:
        engine.once = shared


def generations(engine):
    return [call for call in engine.calls if call["path"].startswith("/v1/")]


def test_what_a_client_sends_and_gets_passes_as_it_is(engines, router):
    body = (
        '{ "model":"fake", "messages":[{"role":"user","content":"hi"}],  "logprobs": true,'
        ' "tools":[{"type":"function","function":{"name":"f"}}],'
        ' "response_format":{"type":"json_object"}, "unknown": [1, 2] }'
    )
    status, headers, answer = router.call(
        "/v1/chat/completions", body, {"Authorization": "Bearer mine", "x-request-id": "7"}
    )
    assert status == 200
    assert json.loads(answer)["choices"][0]["message"]["content"] == " word0 word1 word2 word3"
    (call,) = generations(engines[0]) + generations(engines[1])
    assert call["body"] == body
    assert "authorization" not in call["headers"]
    assert call["headers"]["x-request-id"] == "7"
    assert headers["x-request-id"]


def test_requests_under_way_stay_within_their_memory(engines, start_router):
    """Many bodies whose engines do not answer: what fits waits, and the rest is refused."""
    router = start_router("60s", "--http.all_bodies", "64MiB")
    for engine in engines:
        engine.behaviour = {"silent": True}
    before, _ = router.resident()
    body = json.dumps({"model": "fake", "prompt": "hi", "user": "A" * 4_000_000})
    refused = 'cairn_router_http_answers_total{route="other",code="503"}'
    connections = []
    for sent in range(1, 61):
        connection = http.client.HTTPConnection(router.http, timeout=PATIENCE)
        connections.append(connection)
        # A client that is refused may find the connection closed before it has sent all.
        with contextlib.suppress(ConnectionError):
            connection.request("POST", "/v1/completions", body)
        router.wait(
            lambda sent=sent: (
                router.metric("cairn_router_active_requests") + router.count(refused) >= sent
            )
        )
    accepted = router.metric("cairn_router_active_requests")
    assert 8 <= accepted <= 16
    assert router.count(refused) == 60 - accepted
    assert router.metric("cairn_router_http_body_bytes") <= 64 << 20
    # All 60 would be 240 MB, or twice as much with a copy each.
    _, most = router.resident()
    assert most - before < 128 << 20
    for connection in connections:
        connection.close()
    router.wait(lambda: router.metric("cairn_router_http_body_bytes") == 0)
    status, _, _ = router.call("/v1/models")
    assert status == 200


def test_a_stream_passes_byte_by_byte(engines, router):
    body = prompt(stream=True, stream_options={"include_usage": True})
    status, headers, answer = router.call("/v1/completions", body)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    engine = next(e for e in engines if generations(e))
    connection = http.client.HTTPConnection("127.0.0.1", engine.server_address[1])
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body))
        assert connection.getresponse().read().decode() == answer
    # The client may have the end before it is counted.
    router.wait(lambda: router.metric('cairn_router_tokens_total{kind="prompt"}') == 7)
    router.wait(lambda: router.metric('cairn_router_tokens_total{kind="generated"}') == 4)


def test_models_are_those_of_the_engines(router):
    _, _, answer = router.call("/v1/models")
    (model,) = json.loads(answer)["data"]
    assert model == {
        "id": "fake",
        "object": "model",
        "owned_by": "fake",
        "max_model_len": 4096,
    }
    status, _, answer = router.call("/v1/completions", prompt() | {"model": "other"})
    assert status == 404 and json.loads(answer)["error"]["code"] == "model_not_found"


def test_openais_client(router):
    client = openai.OpenAI(base_url=f"http://{router.http}/v1", api_key="any", max_retries=0)
    messages = [{"role": "user", "content": "hi"}]
    chunks = list(client.chat.completions.create(model="fake", messages=messages, stream=True))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks).startswith(" word0")


def test_a_conversation_stays_where_it_began(engines, router):
    count = 20  # The first requests go to an engine by chance.
    ask = "tell me of this "
    conversations = [[{"role": "user", "content": f"{i:02} {ask}" * 20}] for i in range(count)]
    for _ in range(3):
        for messages in conversations:
            body = {"model": "fake", "messages": messages}
            status, _, answer = router.call("/v1/chat/completions", body)
            assert status == 200
            messages.append(json.loads(answer)["choices"][0]["message"])
            messages.append({"role": "user", "content": "and then? " * 8})
            # One that has not ended yet is a queue, which a short conversation rather avoids.
            router.wait(lambda: router.metric("cairn_router_active_requests") == 0)
    homes = {}
    for i, engine in enumerate(engines):
        for call in generations(engine):
            homes.setdefault(call["body"].split("content")[1][:10], set()).add(i)
    assert len(homes) == count
    assert all(len(home) == 1 for home in homes.values())
    # And not all at one.
    assert {engine for home in homes.values() for engine in home} == {0, 1}


@pytest.mark.parametrize(
    "behaviour",
    [
        {"status": 500},
        {"status": 429},
        {"status": 401},
        {"wrong_json": True},
        {"huge_head": True},
        {"endless": True},
        {"silent": True},
    ],
    ids=lambda behaviour: next(iter(behaviour)) + str(next(iter(behaviour.values()))),
)
def test_another_engine_answers_for_a_bad_one(engines, start_router, behaviour):
    # The other one, on a busy machine, needs some of that time.
    router = start_router("3s" if "silent" in behaviour else "60s")
    meet_first(engines, behaviour)
    status, _, answer = router.call("/v1/completions", prompt())
    assert status == 200, answer
    assert [len(generations(engine)) for engine in engines] == [1, 1]


def test_another_engine_answers_for_a_stream_that_breaks_before_its_first_event(engines, router):
    meet_first(engines, {"break_after": 0})
    status, _, answer = router.call("/v1/completions", prompt(stream=True))
    assert status == 200
    assert answer.endswith("data: [DONE]\n\n") and '"error"' not in answer
    assert [len(generations(engine)) for engine in engines] == [1, 1]


def test_what_no_engine_takes_the_client_sees(engines, router):
    for engine in engines:
        engine.behaviour = {"status": 429}
    status, headers, answer = router.call("/v1/completions", prompt())
    assert status == 429 and headers["retry-after"] == "7"
    assert json.loads(answer)["error"]["message"] == "as told"


def test_when_all_engines_are_silent_the_client_is_told(engines, start_router):
    router = start_router("1s")
    for engine in engines:
        engine.behaviour = {"silent": True}
    status, _, answer = router.call("/v1/completions", prompt())
    assert status == 503 and "said nothing" in json.loads(answer)["error"]["message"]


def test_the_callers_own_errors_pass(engines, router):
    for engine in engines:
        engine.behaviour = {"status": 422}
    status, _, answer = router.call("/v1/completions", prompt())
    assert status == 422 and json.loads(answer)["error"]["type"] == "told"
    assert sum(len(generations(engine)) for engine in engines) == 1
    status, _, answer = router.call("/v1/completions", '{"prompt":')
    assert status == 400 and json.loads(answer)["error"]["code"] == "invalid_json"
    assert sum(len(generations(engine)) for engine in engines) == 1


def test_a_stream_that_breaks_ends_with_an_error(engines, router):
    for engine in engines:
        engine.behaviour = {"break_after": 2}
    status, _, answer = router.call("/v1/completions", prompt(stream=True))
    events = answer.removesuffix("\n\n").split("\n\n")
    assert status == 200 and len(events) == 3
    error = json.loads(events[2].removeprefix("data: "))["error"]
    assert "in the middle" in error["message"]
    router.wait(lambda: router.metric('cairn_router_requests_total{result="broken"}') == 1)


def test_a_client_that_goes_ends_the_call_to_the_engine(engines, router):
    for engine in engines:
        engine.behaviour = {"gap": 0.02}
    connection = http.client.HTTPConnection(router.http, timeout=PATIENCE)
    with contextlib.closing(connection):
        body = json.dumps(prompt(stream=True, max_tokens=10_000))
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.read(6) == b"data: "
    router.wait(lambda: sum(engine.cancelled for engine in engines) == 1)
    router.wait(lambda: router.metric('cairn_router_requests_total{result="cancelled"}') == 1)


def test_an_engine_that_is_not_well_gets_nothing_until_it_is(engines, router):
    engines[0].behaviour = {"health": 503}
    router.ready(1)
    for i in range(4):
        assert router.call("/v1/completions", prompt(f"{i} " * 40))[0] == 200
    assert not generations(engines[0])
    engines[0].behaviour = {}
    router.ready(2)


def test_before_any_engine_is_there_the_router_says_for_whom_it_waits():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    router = Router([url])
    status, _, answer = router.call("/v1/completions", prompt())
    assert status == 503 and url in json.loads(answer)["error"]["message"]
    assert router.call("/health")[0] == 503
    engine = Engine(port=port)
    router.ready(1)
    assert router.call("/v1/completions", prompt())[0] == 200
    engine.shutdown()
    engine.server_close()
    assert router.stop() == 0


def test_engines_get_the_routers_key(tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-router\n")
    engine = Engine(key="sk-router")
    router = Router([engine.url], "--engines.api_key_file", str(key)).ready(1)
    headers = {"Authorization": "Bearer sk-client"}
    assert router.call("/v1/completions", prompt(), headers)[0] == 200
    (call,) = generations(engine)
    assert call["headers"]["authorization"] == "Bearer sk-router"
    assert router.stop() == 0
    engine.shutdown()
    engine.server_close()


def test_engines_say_what_the_tokens_are(engines):
    router = Router([e.url for e in engines], "--engines.tokens", "tokenize").ready(2)
    for _ in range(2):
        assert router.call("/v1/completions", prompt("x" * 500))[0] == 200
    asked = [c for e in engines for c in e.calls if c["path"] == "/tokenize"]
    assert [json.loads(c["body"]) for c in asked] == [{"model": "fake", "prompt": "x" * 500}]
    assert sorted(len(generations(e)) for e in engines) == [0, 2]
    router.wait(lambda: router.metric('cairn_router_engine_prompts_total{keys="tokens"}') == 2)
    assert router.stop() == 0


def test_a_drain_lets_streams_end(engines):
    router = Router([e.url for e in engines], "--drain", "2m").ready(2)
    for engine in engines:
        engine.behaviour = {"gap": 0.05}
    connection = http.client.HTTPConnection(router.http, timeout=PATIENCE)
    with contextlib.closing(connection):
        body = json.dumps(prompt(stream=True, max_tokens=10))
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.read(6) == b"data: "
        router.process.send_signal(signal.SIGTERM)
        assert answer.read().endswith(b"data: [DONE]\n\n")
    assert router.process.wait(timeout=PATIENCE) == 0


def test_a_router_before_a_router_before_workers(tmp_path):
    cairn, folder = BUILD / "bin/cairn", tmp_path / "cluster"
    model = ROOT / "tests/data/gguf/kquant.gguf"
    up = [cairn, "up", "--workers", "1", "--nodes", "1", "--model", model, "--dir", folder]
    started = subprocess.run([*up, "--json"], check=True, stdout=subprocess.PIPE, text=True)
    url = json.loads(started.stdout)["endpoint"].removesuffix("/v1")
    router = Router([url]).ready(1)
    try:
        inner = openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0)
        outer = openai.OpenAI(base_url=f"http://{router.http}/v1", api_key="any", max_retries=0)
        model_id = outer.models.list().data[0].id
        assert model_id == inner.models.list().data[0].id
        texts = []
        for client in (inner, outer):
            answer = client.chat.completions.create(
                model=model_id,
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=8,
                temperature=0,
            )
            texts.append(answer.choices[0].message.content)
            streamed = client.chat.completions.create(
                model=model_id,
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=8,
                temperature=0,
                stream=True,
            )
            texts.append("".join(c.choices[0].delta.content or "" for c in streamed if c.choices))
        assert len(set(texts)) == 1
        # The inner router itself refuses what it does not support.
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            outer.completions.create(model=model_id, prompt="hi", logprobs=1)
        assert router.stop() == 0
    finally:
        subprocess.run([cairn, "down", "--dir", folder], check=True)


def test_the_commands_of_the_page():
    page = (ROOT / "docs/operate/router.md").read_text(encoding="utf-8")
    section = page.split("## Before other engines")[1].split("\n## ")[0]
    commands = section.split("```bash\n")[1].split("```")[0]
    # The same on ports that are free.
    for port in ("8000", "8001", "8002"):
        commands = commands.replace(port, str(free_port()))
    http_port = commands.split("http://127.0.0.1:")[3].split("/")[0]
    commands = commands.replace(
        "cairn-router --workers",
        "cairn-router --listen 127.0.0.1:0 --admin.listen 127.0.0.1:0 "
        f"--http.listen 127.0.0.1:{http_port} --workers",
    )
    script = f"trap 'kill $(jobs -p)' EXIT\nset -e\n{commands}"
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        # And all that it started: a shell that is killed runs no trap.
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    assert shell.returncode == 0, said
    assert " word0 word1 word2" in said
