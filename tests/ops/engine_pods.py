"""Engines in pods of the small cluster: the manifests of deploy/kubernetes, an image of an engine
that has nothing of Cairn, and what is asked of the engines.

The engine is a stand-in for `vllm serve`. It reads --kv-transfer-config as the connector does, and
keeps its prompts at the node through the connector's own store.
"""

import http.client
import json
import re
import stat
import subprocess
import sys

import pytest
import yaml

from cairn_cluster import make_programs
from conftest import ROOT
from small_cluster.cluster import Image

sys.path[:0] = [str(ROOT / "deploy/docker"), str(ROOT / "tests/package")]
# Need the paths above.
from bare_root import BareRoot  # noqa: E402
from client_files import unpack  # noqa: E402

FOLDER = ROOT / "deploy/kubernetes"
CLIENT, VLLM = "cairn-client:0.1.0", "vllm/vllm-openai:v0.32.0"
BLOCK = 64 << 10
LAST = 20  # Blocks that an engine stores between SIGTERM and its end.
_ENGINE = """#!{python}
import argparse, hashlib, http.server, json, os, queue, signal, sys, threading, time
import cairn
from cairn._engine.store import Store
from cairn.vllm.options import ConnectorOptions

parser = argparse.ArgumentParser()
parser.add_argument("words", nargs=2)
parser.add_argument("--kv-transfer-config", type=json.loads, required=True)
parser.add_argument("--port", type=int, default=8000)
given, _ = parser.parse_known_args()
options = ConnectorOptions.read(given.kv_transfer_config["kv_connector_extra_config"])
spec = cairn.NamespaceSpec(
    model=given.words[1], revision="1", numerics="1", tenant=options.tenant,
    layout=cairn.OpaqueLayout("stand-in", max_part_bytes={block}, block_tokens=16))
store = Store(options, spec, "engine")
to_save, stored = queue.Queue(), []

def compute(prompt, i):
    return hashlib.sha256(f"{{prompt}} {{i}}".encode()).digest() * ({block} // 32)

def keys_of(prompt, blocks):
    return cairn.block_keys(store.namespace, [prompt] * 16 * blocks, 16)

def save():
    while True:
        keys, prompt, i = to_save.get()
        part = cairn.Part(keys[i], compute(prompt, i), parent=keys[i - 1] if i else None,
                          first_position=16 * i)
        stored.extend(store.save([part], [{block}]))
        to_save.task_done()

def answer(prompt, blocks):
    begin = time.monotonic()
    keys = keys_of(prompt, blocks)
    found = store.match(keys)
    hits = found.matched_blocks if found else 0
    into = [bytearray({block}) for _ in range(hits)]
    failed = store.load(keys[:hits], 0, into, found=found) if hits else set()
    right = all(into[i] == compute(prompt, i) for i in range(hits) if i not in failed)
    for i in range(blocks):
        if i >= hits or i in failed:
            to_save.put((keys, prompt, i))
    return dict(loaded=hits - len(failed), right=right, seconds=time.monotonic() - begin)

class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/maps":
            return self.reply(open("/proc/self/maps").read())
        stats = store._client.stats()
        self.reply(dict(uid=os.getuid(), path=stats.path, reason=stats.path_reason))
    def do_POST(self):
        self.reply(answer(**json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
    def log_message(self, *_): pass

def end():
    # Requests that are under way end one after the other.
    for i in range({last}):
        to_save.put((keys_of(999, {last}), 999, i))
        threading.Event().wait(0.1)
    to_save.join()
    print(json.dumps(dict(last=sum(stored[-{last}:]))), flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end).start())
threading.Thread(target=save, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", given.port), Handler).serve_forever()
"""


class Images:
    """`wheels`: the folder with the client's. `images` is what SmallCluster wants; `scripts`: what
    the image of the client has in its PATH."""

    def __init__(self, folder, wheels):
        client = folder / "client"
        unpack(wheels, client)
        python = folder / "venv/bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        root = BareRoot(folder / "root", python, client.glob("cairn/_native*.so"))
        if root.unavailable:
            pytest.skip(f"no root folder of its own: {root.unavailable}")
        vllm = root.folder / "usr/local/bin/vllm"
        vllm.parent.mkdir(parents=True)
        vllm.write_text(_ENGINE.format(python=python, block=BLOCK, last=LAST))
        vllm.chmod(0o755)
        _let_others_read(root.folder)
        self._root = root
        self.scripts = {"stage-client": (ROOT / "deploy/docker/stage-client").read_text()}
        self.images = {CLIENT: Image(files={"/opt/cairn/client": client}), VLLM: Image(root.folder)}

    def strange(self, maps):
        """Libraries of a process that are neither the runtime's nor Python's nor staged."""
        return [
            path
            for path in self._root.strange(maps)
            if not re.match(r"/cairn-client/\.client-\w+/", path)
        ]


def _let_others_read(folder):
    for path in folder.rglob("*"):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if stat.S_ISDIR(mode) else 0o444))
    folder.chmod(0o755)


def make_images(folder):
    """Of the wheels that `make wheel` made."""
    wheels = ROOT / "build/wheels"
    assert list(wheels.glob("cairn-*.whl")), f"{wheels} has no wheels: run `make wheel` first"
    return Images(folder, wheels)


def programs_for(folder, programs, images, scripts=()):
    return make_programs(folder, programs, {**images.scripts, **dict(scripts)})


def manifest(name, **replaced):
    """The objects of a file, with small memory, patient look-ups, and these texts replaced."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    text = re.sub(r"capacity: \d+GiB", "capacity: 64MiB", text)
    # 50 ms are not enough where tests take all processors.
    text = re.sub(r'("address": "[^"]+")', r'\1, "lookup_timeout": 2', text)
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    return [doc for doc in yaml.safe_load_all(text) if doc]


def call(cluster, pod, method, path, body=None):
    """What an engine's pod answers."""
    ports = [p for c in pod.containers if c.spec["image"] == VLLM for p in c.spec["ports"]]
    port = ports[0]["containerPort"]

    def ask():
        connection = http.client.HTTPConnection(pod.address, port, timeout=60)
        connection.request(method, path, body and json.dumps(body))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    return cluster.in_client(ask)


def generate(cluster, pod, prompt, blocks=8):
    """Blocks of a prompt that came from the node; the request is right and soon in any case."""
    answer = call(cluster, pod, "POST", "/", {"prompt": prompt, "blocks": blocks})
    assert answer["right"], answer
    # The store's bounds: a look-up of 2 s, a load of 5 s.
    assert answer["seconds"] < 15, answer
    return answer["loaded"]


def wait_loaded(cluster, pod, prompt, blocks=8):
    """Until the prompt comes from the node."""
    cluster.wait(lambda: generate(cluster, pod, prompt, blocks) == blocks, f"prompt {prompt}", 60)


def last_blocks(pod):
    """The blocks that an engine stored after SIGTERM."""
    text = pod.container("engine").log.read_text(errors="replace")
    (line,) = [line for line in text.splitlines() if line.startswith('{"last"')]
    return json.loads(line)["last"]
