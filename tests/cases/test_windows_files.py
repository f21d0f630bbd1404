"""Files from Windows editors, and secrets with a line break at their end, mean what they say.

Sources: envoyproxy/envoy #11659; vercel/vercel #393; kubernetes/kubernetes #23404;
paperless-ngx #9582; linuxserver/docker-netbox #21.
"""

import hashlib
import json

import pytest
from engine import Engine
from programs import ask

MARK = "\ufeff"
YAML = "host: {capacity: 64MiB}\nindex:\n  capacity: 16MiB\nlog:\n  level: info\n"
KEY = "sk-test"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


@pytest.mark.parametrize("text", [YAML, YAML.replace("\n", "\r\n"), MARK + YAML, "", "# none\n"])
def test_settings(programs, tmp_path, text):
    (tmp_path / "settings").write_bytes(text.encode())
    node = programs.start("cairn-cache", "--check-config", "--config", tmp_path / "settings")
    assert node.wait() == 0, node.stderr()


@pytest.mark.parametrize(
    "text",
    [
        f"chat {DIGEST}\n",
        f"chat {DIGEST}\r\nops {'0' * 64}\r\n",
        f"chat {DIGEST.upper()}\n",
        f"chat {DIGEST}",
        f"{MARK}chat {DIGEST}\n",
        f"{MARK}# keys\r\nchat {DIGEST}\r\n",
    ],
)
def test_keys_of_callers(programs, tmp_path, text):
    (tmp_path / "keys").write_bytes(text.encode())
    engine = Engine()
    router = programs.router(engine.url, "--http.api_keys", tmp_path / "keys", model=None)
    ready = router.ready()
    assert ready, router.stderr()
    url = f"http://{ready['http']}/query"
    body = {"token_ids": [1] * 64, "block_size": 64, "tenant_id": "another"}
    status, _, answer = ask(url, body, {"Authorization": f"Bearer {KEY}"})
    assert status == 403
    assert "expected 'chat'" in json.loads(answer)["error"]["message"]


def test_keys_in_another_encoding(programs, tmp_path):
    (tmp_path / "keys").write_bytes(f"chat {DIGEST}\n".encode("utf-16"))
    router = programs.router("http://127.0.0.1:1", "--http.api_keys", tmp_path / "keys", model=None)
    assert router.wait() in (1, 2)
    assert "http.api_keys" in router.stderr()


@pytest.mark.parametrize("text", [KEY, KEY + "\n", KEY + "\r\n", MARK + KEY + "\r\n"])
def test_the_key_for_engines(programs, tmp_path, text):
    (tmp_path / "key").write_bytes(text.encode())
    engine = Engine()
    url = programs.relay(engine, "--engines.api_key_file", tmp_path / "key")
    assert ask(url + "/v1/completions", {"model": engine.model, "prompt": "x"})[0] == 200
    assert engine.authorizations[-1] == f"Bearer {KEY}"


def test_one_salt_in_every_spelling(programs, tmp_path):
    """Workers that were given the same secret have the same namespace, and share."""
    salt = "s3cret-salt-of-32-bytes-0123456789"
    fingerprints = []
    for text in (salt, salt + "\n", salt + "\r\n", MARK + salt + "\n", "another\n"):
        path = tmp_path / "salt"
        path.write_bytes(text.encode())
        path.chmod(0o600)
        node = programs.node()
        cache = node.ready()["grpc"]
        worker = programs.worker("--cache", cache, "--tenant_salt_file", path)
        address = worker.ready()["grpc"]
        prompt = "The quick brown fox jumps over the lazy dog. " * 12
        done = programs.cairn(
            *("generate", "--worker", address, "--raw", "--prompt", prompt),
            *("--max-tokens", "1", "--json"),
        )
        assert done.returncode == 0, done.stderr
        told = programs.cairn("stat", "--cache", cache, "--json")
        fingerprints.append(fingerprint_of(told.stdout))
        worker.stop()
        node.stop()
    assert len(set(fingerprints[:4])) == 1
    assert fingerprints[4] != fingerprints[0]


def fingerprint_of(told):
    (space,) = json.loads(told)["namespaces"]
    return space["fingerprint"]
