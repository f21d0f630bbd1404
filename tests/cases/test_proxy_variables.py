"""Variables that name a proxy are set on company machines. Nothing here goes through it: neighbours
are no Internet.

Sources: grpc/grpc #9989, #11896, #15942, #29718, #39516; ni/grpc-labview #377.
"""

import socket

import pytest
from engine import Engine
from programs import ask, wait_until


@pytest.fixture
def env(programs):
    # Accepts nothing, and answers nothing.
    with socket.create_server(("127.0.0.1", 0)) as dead:
        proxy = f"http://127.0.0.1:{dead.getsockname()[1]}"
        names = [f"{kind}_proxy" for kind in ("http", "https", "all", "grpc")]
        names += [name.upper() for name in names]
        others = {k: v for k, v in programs.env.items() if k.lower() != "no_proxy"}
        yield others | dict.fromkeys(names, proxy)


def test_neighbours_are_reached(programs, env):
    node = programs.node(env=env).ready()
    worker = programs.worker("--cache", node["grpc"], env=env).ready()
    router = programs.router(worker["grpc"], "--cache", node["grpc"], env=env).ready()
    url = "http://" + router["http"]
    wait_until(lambda: ask(url + "/health")[0] == 200, "the router is healthy")
    assert ask(url + "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
    told = programs.cairn("stat", "--cache", node["grpc"], env=env)
    assert told.returncode == 0, told.stderr
    health = programs.start("cairn-cache", "health", "--admin.listen", node["admin"], env=env)
    assert health.wait() == 0, health.stderr()


def test_engines_are_reached(programs, env):
    url = Engine().url.replace("127.0.0.1", "localhost")
    ready = programs.router(url, model=None, env=env).ready()
    wait_until(lambda: ask(f"http://{ready['http']}/health")[0] == 200, "the router is healthy")
