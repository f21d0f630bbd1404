"""A client behind a forward proxy names the whole URL in the request line. A server has to accept
that form (RFC 9112, 3.2.2), and should skip a line break before a request (2.2).

Sources: python/cpython #132741; honojs/node-server #228; 00cpxxx/proxylite #3.
"""

import json

import pytest
from engine import Engine
from programs import raw


@pytest.fixture
def ports(programs):
    router = programs.router(Engine().url, model=None)
    return router.ready()


def test_the_whole_url_names_the_path(ports):
    for url in ("http://cairn.example/v1/models", "HTTP://cairn.example:80/v1/models?x=y"):
        first, body = raw(
            ports["http"], b"GET %s HTTP/1.1\r\nHost: cairn.example\r\n\r\n" % url.encode()
        )
        assert " 200 " in first, body
        assert json.loads(body)["object"] == "list"


def test_a_url_without_a_path_is_the_root(ports):
    first, body = raw(ports["http"], b"GET http://cairn.example HTTP/1.1\r\nHost: x\r\n\r\n")
    assert " 404 " in first
    assert b"got '/'" in body


def test_the_admin_port_takes_it_too(ports):
    first, _ = raw(ports["admin"], b"GET http://x:1/livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert " 200 " in first


def test_a_line_break_before_the_request(ports):
    first, _ = raw(ports["http"], b"\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert " 200 " in first
