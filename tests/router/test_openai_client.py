"""OpenAI's own client talks to the HTTP edge: whole answers, streams, errors, usage, keys."""

import hashlib
import json
import os
import pathlib
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release"))
KEY = "secret"


class FakeServer:
    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [BUILD / "tests/fake_router_server", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = self.process.stdout.readline().strip()

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=120) == 0


@pytest.fixture(scope="module")
def fake():
    server = FakeServer()
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"chat {hashlib.sha256(KEY.encode()).hexdigest()}\n")
    server = FakeServer(str(path))
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The processes that `cairn up` starts: two nodes, two workers, a router. CAIRN_ROUTER_URL
    names another."""
    if url := os.environ.get("CAIRN_ROUTER_URL"):
        yield url
        return
    cairn, folder = BUILD / "bin/cairn", tmp_path_factory.mktemp("up") / "cluster"
    model = ROOT / "tests/data/gguf/kquant.gguf"
    up = [cairn, "up", "--workers", "2", "--nodes", "2", "--model", model, "--dir", folder]
    started = subprocess.run([*up, "--json"], check=True, stdout=subprocess.PIPE, text=True)
    yield json.loads(started.stdout)["endpoint"].removesuffix("/v1")
    subprocess.run([cairn, "down", "--dir", folder], check=True)
    assert not folder.exists()


@pytest.fixture(params=["fake", "cluster"])
def any_router(request):
    """A router whose answers may be of any model."""
    return request.getfixturevalue(request.param)


def client_of(url, key="any"):
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=120)


def user(text):
    return [{"role": "user", "content": text}]


def test_models(any_router):
    client = client_of(any_router)
    models = client.models.list().data
    assert models
    assert client.models.retrieve(models[0].id).id == models[0].id


def test_a_chat_has_text_and_usage(any_router):
    client = client_of(any_router)
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model, messages=user("one two three"), max_tokens=4, temperature=0, seed=1
    )
    assert answer.model == model
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens <= answer.usage.prompt_tokens


def test_a_stream_has_the_text_of_the_whole_answer(any_router):
    client = client_of(any_router)
    asked = {
        "model": client.models.list().data[0].id,
        "messages": user("one two three"),
        "max_tokens": 4,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] is not None
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completions(any_router):
    client = client_of(any_router)
    model = client.models.list().data[0].id
    asked = {"model": model, "prompt": "one two three", "max_tokens": 3, "temperature": 0}
    whole = client.completions.create(**asked)
    streamed = client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_what_was_asked_before_is_not_computed_again(cluster):
    client = client_of(cluster)
    asked = {
        "model": client.models.list().data[0].id,
        "messages": user("seven eight nine " * 30),
        "max_tokens": 1,
        "temperature": 0,
    }

    def cached():
        usage = client.chat.completions.create(**asked).usage
        return usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens

    # Other tests' prompts begin with the same system message.
    first, prompt_tokens = cached()
    assert first < prompt_tokens // 2
    # New blocks are pushed after the answer.
    deadline = time.monotonic() + 120
    while cached()[0] < prompt_tokens // 2:
        assert time.monotonic() < deadline, "the cache never had half of the prompt"


def test_the_last_message_is_answered(fake):
    answer = client_of(fake).chat.completions.create(
        model="fake",
        messages=[
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "one two"}]},
        ],
    )
    assert answer.choices[0].message.content == "one two "
    assert answer.usage.prompt_tokens_details.cached_tokens == 64


def test_errors_have_the_classes_of_the_client(any_router):
    client = client_of(any_router)
    with pytest.raises(openai.NotFoundError) as none:
        client.chat.completions.create(model="no-such-model", messages=user("x"))
    assert none.value.code == "model_not_found"
    model = client.models.list().data[0].id
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=model, messages=user("x"), temperature=5)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model=model,
            messages=user("x"),
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    assert tools.value.param == "tools"
    assert tools.value.code == "unsupported_parameter"


def test_a_busy_router_says_when_to_try_again(fake):
    with pytest.raises(openai.RateLimitError) as busy:
        client_of(fake).chat.completions.create(model="fake", messages=user("busy"), stream=True)
    assert busy.value.response.headers["retry-after"] == "3"


def test_an_error_in_mid_stream_reaches_the_client(fake):
    stream = client_of(fake).chat.completions.create(
        model="fake", messages=user("one two break"), stream=True
    )
    text = ""
    with pytest.raises(openai.APIError, match="the worker has gone"):
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == "one two "


def test_a_client_may_leave_in_mid_stream(fake):
    client = client_of(fake)
    stream = client.chat.completions.create(model="fake", messages=user("slow"), stream=True)
    next(iter(stream))
    stream.close()
    assert client.models.list().data


def test_keys(keyed):
    assert client_of(keyed, KEY).models.list().data
    with pytest.raises(openai.AuthenticationError) as wrong:
        client_of(keyed, "other").models.list()
    assert wrong.value.code == "invalid_api_key"


def test_without_a_client(fake):
    """Fields that the client never sends."""

    def ask(path, body=None, **headers):
        request = urllib.request.Request(fake + path, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    json_type = {"Content-Type": "application/json"}
    assert ask("/health") == (200, {"status": "ok"})
    assert ask("/nowhere")[0] == 404
    assert ask("/v1/completions")[0] == 405
    assert ask("/v1/completions", b"{}")[0] == 415
    code, answer = ask("/v1/completions", b"{", **json_type)
    assert (code, answer["error"]["code"]) == (400, "invalid_json")
    assert set(answer["error"]) == {"message", "type", "param", "code"}
