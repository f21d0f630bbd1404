"""The holders of a prompt, asked over HTTP of a real router before fake engines."""

import json

import pytest
from envoy_stand import Router, ask
from fake_engine import Engine

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    engines = [Engine(), Engine()]
    router = Router(engines, tmp_path_factory.mktemp("query"))
    router.engines = {engine.url: engine for engine in engines}
    yield router
    assert router.process.stop() == 0
    for engine in engines:
        engine.shutdown()
        engine.server_close()


def query(router, path="/query", **fields):
    status, _, body = ask(router.http, "POST", path, json.dumps(fields), **JSON)
    return status, json.loads(body)


def test_the_engine_that_was_sent_a_prompt_holds_it(router):
    tokens = list(range(100, 170))
    assert query(router, token_ids=tokens, block_size=16) == (200, {"default": {}})
    body = json.dumps({"prompt": tokens, "max_tokens": 1})
    assert ask(router.http, "POST", "/v1/completions", body, **JSON)[0] == 200
    at = next(url for url, engine in router.engines.items() if engine.calls)
    # Four full blocks, in the engine's own memory.
    held = {"longest_matched": 64, "GPU": 64, "CPU": 0, "DISK": 0, "DP": {"0": 64}}
    assert query(router, token_ids=tokens, block_size=16) == (200, {"default": {at: held}})
    # Another prompt that begins alike.
    shorter = {**held, "longest_matched": 32, "GPU": 32, "DP": {"0": 32}}
    other = {"token_ids": tokens[:40] + [1] * 40, "block_size": 16, "tenant_id": "chat"}
    assert query(router, **other) == (200, {"chat": {at: shorter}})
    other_engine = next(url for url in router.engines if url != at)
    assert query(router, **other, instance_id=other_engine) == (200, {"chat": {}})
    assert query(router, **other, cache_salt="s") == (200, {"chat": {}})


def test_errors_name_the_field(router):
    for path, fields, param in (
        ("/query", {"token_ids": [1], "block_size": 64}, "block_size"),
        ("/query", {"block_size": 16}, "token_ids"),
        ("/query", {"token_ids": [1], "block_size": 16, "model": "other"}, "model"),
        ("/query", {"token_ids": [1], "block_size": 16, "instance_id": "nobody:1"}, "instance_id"),
        ("/query_by_hash", {"seq_hashes": [17], "block_size": 16}, "seq_hashes[0]"),
    ):
        status, answer = query(router, path, **fields)
        assert status in (400, 404)
        assert answer["error"]["param"] == param
