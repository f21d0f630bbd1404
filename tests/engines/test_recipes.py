"""The commands of examples/recipes on a CPU, with small models. Each runs twice: the second process
answers from what the first one stored."""

import contextlib
import json
import os
import re
import subprocess

import pytest
import torch

import draft_models
import layout_models
import test_sglang as sglang
from conftest import HERE, ROOT, Counts, made, numbers
from make_model import byte_tokenizer
from serve import Serve
from test_lmcache_connector_vllm import environment as lmcache_environment
from test_sglang import little_memory, sglang_finds_its_packages  # noqa: F401  (fixtures)

RECIPES = ROOT / "examples/recipes"
SCRIPTS = sorted(path.name for path in RECIPES.glob("*.sh"))
SMALL = ["--max-model-len", "2048", "--block-size", "32", "--enforce-eager", "--dtype", "float32"]
PROMPT = "".join(chr(97 + n % 26) for n in numbers(11, 700))


def with_tokenizer(folder):
    byte_tokenizer().save_pretrained(folder)
    return folder


def windows(folder):
    layout_models.make("gemma3").save_pretrained(folder)
    return with_tokenizer(folder)


def head(folder):
    draft_models.mtp(folder)
    return with_tokenizer(folder)


MODELS = {
    "vllm.sh": lambda _: made("bytes"),
    "vllm.sh with windows": windows,
    "vllm-mtp.sh": head,
    "vllm-tier.sh": lambda _: made("bytes"),
    "lmcache.sh": lambda _: made("bytes"),
}


def environment(name, node, folder):
    """What a CPU needs, and where the node is."""
    path = os.pathsep.join([str(HERE / "on_cpu"), str(HERE), os.environ.get("PYTHONPATH", "")])
    if name == "lmcache.sh":
        file = folder / "lmcache.yaml"
        text = (RECIPES / "lmcache.yaml").read_text(encoding="utf-8")
        file.write_text(text.replace("127.0.0.1:7400", node.grpc))
        # Without LMCache's own memory, answers come from the node.
        return lmcache_environment(file, LMCACHE_LOCAL_CPU="false", PYTHONPATH=path)
    return {"CAIRN_ADDRESS": node.grpc, "PYTHONPATH": path}


@pytest.mark.parametrize("name", MODELS)
def test_a_second_process_answers_from_what_the_first_one_stored(
    name, engine_log, start_node, tmp_path
):
    node, model = start_node(), MODELS[name](tmp_path / "model")
    script = name.split()[0]
    more = {"vllm-tier.sh": {"BYTES": str(64 << 20)}}.get(script, {})
    answers, fetched = [], []
    with Counts(node) as counts:
        for _ in range(2):
            with Serve(
                [model, *SMALL],
                engine_log(),
                environment={**environment(script, node, tmp_path), **more},
                command=["sh", RECIPES / script],
            ) as server:
                answers.append(server.complete(str(model), PROMPT))
                # vLLM's offloading stores with a later step.
                server.complete(str(model), "another")
                counts.wait_blocks(2)
                fetched.append(counts.since()["fetched_bytes"])
    assert answers[0] == answers[1]
    assert fetched[0] == 0 and fetched[1] > 0


@pytest.fixture
def arguments(tmp_path):
    """What a recipe starts, from programs that write their arguments down."""
    for name in ("vllm", "python3"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$#"; printf "%s\\0" "$@"\n')
        (tmp_path / name).chmod(0o755)

    def run(script, *more, **variables):
        result = subprocess.run(
            ["sh", RECIPES / script, "MODEL", *more],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables},
            check=True,
            capture_output=True,
            text=True,
        )
        count, rest = result.stdout.split("\n", 1)
        found = rest.split("\0")[:-1]
        assert len(found) == int(count)
        return found

    return run


def test_sglang_gets_a_storage_that_works(arguments, start_node):
    """What the command says to SGLang, given to SGLang's own factory."""
    node, (writer, reader) = start_node(), [sglang.pool("page_first", seed) for seed in (1, 2)]
    given = arguments("sglang.sh", "--tp", "1", CAIRN_ADDRESS=node.grpc)
    assert given[:4] == ["-m", "sglang.launch_server", "--model-path", "MODEL"]
    assert given[-2:] == ["--tp", "1"]
    settings = json.loads(given[given.index("--hicache-storage-backend-extra-config") + 1])
    assert settings["address"] == node.grpc
    first, second = (sglang.storage(node, pool, **settings) for pool in (writer, reader))
    assert first.batch_set_v1(sglang.keys(1), sglang.indices(0, 1, 2, 3)) == [True] * 4
    assert second.batch_get_v1(sglang.keys(1), sglang.indices(4, 5, 6, 7)) == [True] * 4
    assert torch.equal(sglang.page(reader, 7), sglang.page(writer, 3))
    first.close()
    second.close()


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_a_model_the_error_says_how(script):
    result = subprocess.run(["sh", RECIPES / script], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "MODEL" in result.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_pages_show_the_same(script, arguments):
    pages = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "docs/program/engines").glob("*.md")
    )
    shown = []
    for block in re.findall(r"(?:config '|```json\n)(\{.*?\n?\})(?:'|\n```)", pages, re.S):
        with contextlib.suppress(json.JSONDecodeError):  # Some are shortened.
            shown.append(json.loads(block))
    given = arguments(script)
    for name in ("--kv-transfer-config", "--hicache-storage-backend-extra-config"):
        if name in given:
            assert json.loads(given[given.index(name) + 1]) in shown
    if script == "lmcache.sh":
        [block] = re.findall(r"```yaml\n(.*?)```", pages, re.S)
        assert (RECIPES / "lmcache.yaml").read_text(encoding="utf-8") == block
