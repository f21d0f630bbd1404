"""Clients in browsers ask with OPTIONS first, and read an answer only if it names their page's
origin. Off by default.

Sources: mudler/LocalAI #710; mostlygeek/llama-swap #42; nomic-ai/gpt4all #2196; lm-sys/RouteLLM
#43.
"""

import pytest
from engine import Engine
from programs import ask

PAGE = "https://app.example"
CHAT = {"model": "org/Model-7B", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def start(programs):
    def url(*settings):
        return programs.relay(Engine(), *settings) + "/v1/chat/completions"

    return url


def preflight(url, origin=PAGE):
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    return ask(url, headers=asked, method="OPTIONS")


def test_off_by_default(start):
    url = start()
    status, headers, _ = preflight(url)
    assert status == 405
    assert not [name for name in headers if name.startswith("Access-Control")]
    status, headers, _ = ask(url, CHAT, {"Origin": PAGE})
    assert status == 200
    assert not [name for name in headers if name.startswith("Access-Control")]


def test_a_page_that_is_allowed(start):
    url = start("--http.cors_origins", f"{PAGE},http://localhost:3000")
    status, headers, _ = preflight(url)
    assert status == 200
    assert headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in headers["Access-Control-Allow-Methods"]
    assert headers["Access-Control-Allow-Headers"] == "authorization,content-type,x-stainless-os"
    status, headers, _ = ask(url, CHAT, {"Origin": PAGE})
    assert status == 200
    assert headers["Access-Control-Allow-Origin"] == PAGE
    assert headers["Vary"] == "Origin"
    # Errors, too: otherwise the page sees only that something failed.
    status, headers, _ = ask(url, {"model": 1}, {"Origin": PAGE})
    assert status == 400
    assert headers["Access-Control-Allow-Origin"] == PAGE


def test_a_page_that_is_not_allowed(start):
    url = start("--http.cors_origins", "HTTPS://App.Example:443")
    assert preflight(url)[0] == 200  # The same origin in another spelling.
    for origin in ("https://other.example", "null", "https://app.example.other", PAGE + ":8443"):
        status, headers, _ = preflight(url, origin)
        assert status == 405
        assert "Access-Control-Allow-Origin" not in headers


def test_all_pages(start):
    status, headers, _ = preflight(start("--http.cors_origins", "*"))
    assert status == 200
    assert headers["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/path", "ftp://x", "https://"]
)
def test_what_is_no_origin_is_named(programs, origin):
    router = programs.router("http://127.0.0.1:1", "--http.cors_origins", origin, model=None)
    assert router.wait() == 2
    assert "http.cors_origins" in router.stderr()
    assert origin in router.stderr()
