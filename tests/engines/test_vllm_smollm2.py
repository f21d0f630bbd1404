"""The connector with a real model: SmolLM2-135M, a prompt of 4,000 tokens, `vllm serve` as users
run it."""

import json
import re

import pytest

from conftest import ALONE, HERE, ROOT, Counts, Engine, same, stored
from serve import Serve
from vllm_engine import transfer_config

# 30 layers, K and V, 128 tokens, 3 heads of 64, float32.
BLOCK_BYTES = stored(30 * 2 * 128 * 3 * 64 * 4)
ENGINE = {"max_model_len": 4352, **ALONE}
WORDS = (
    "the cache holds blocks of keys and values that a model made while it read a long prompt "
    "and a second engine reads them back so that it need not compute them again "
    "when the same words come first in another question"
).split()


def text(seed, count):
    """Words in an order of their own."""
    found = []
    for _ in range(count):
        seed = (seed * 1103515245 + 12345) % (1 << 31)
        found.append(WORDS[(seed >> 8) % len(WORDS)])
    return " ".join(found)


@pytest.fixture(scope="module")
def prompts(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer(text(1, 4000)).input_ids
    return ids[:4000], ids[:2000] + tokenizer(
        " Question: what does the cache hold?\nAnswer:"
    ).input_ids


def test_cold_warm_and_from_disk_with_the_same_tokens(
    smollm2, prompts, engine_log, start_node, tmp_path
):
    """Log-probabilities too; and where a prompt is not computed, its first token comes many times
    faster."""
    long, question = prompts
    with Engine(smollm2, engine_log(), **ENGINE) as engine:
        reference = engine.ask(long, tokens=16) + engine.ask(question, tokens=16)
    # A quarter of the memory is what a neighbour may lease at a time, and this prompt has 183 MB.
    disk = ("--disk.path", str(tmp_path), "--host.capacity", "1GiB")
    node = start_node(*disk)
    with Counts(node) as counts:
        with Engine(smollm2, engine_log(), connector={"address": node.grpc}, **ENGINE) as engine:
            cold = engine.ask(long, tokens=16)
            same(cold, reference[:1])
        assert counts.blocks() == 31 and counts.since()["fetched_bytes"] == 0
        with Engine(smollm2, engine_log(), connector={"address": node.grpc}, **ENGINE) as engine:
            warm = engine.ask(long, tokens=16)
            same(warm, reference[:1])
            assert counts.since()["fetched_bytes"] == 31 * BLOCK_BYTES
            assert warm[0]["ttft"] < cold[0]["ttft"] / 10
            same(engine.ask(question, tokens=16), reference[1:])
            assert counts.since()["fetched_bytes"] == (31 + 15) * BLOCK_BYTES
            counts.flush()
            node.kill()
            again = start_node("--listen", node.grpc, *disk)
            with Counts(again) as counted:
                for _ in range(10):
                    same(engine.ask(question, tokens=16), reference[1:])
                    if counted.since()["fetched_bytes"]:
                        break
                assert counted.since()["fetched_bytes"] == 15 * BLOCK_BYTES
                assert counted.since()["from_disk"] > 0


def documented(page, node, model):
    """The page's first `vllm serve` command, word for word but for model and node."""
    [command] = re.findall(
        r"```sh\nvllm serve MODEL \\\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S
    )[:1]
    import shlex

    return [
        str(model),
        *shlex.split(command.replace("\\\n", " ").replace("127.0.0.1:7400", node.grpc)),
    ]


def test_the_documented_server_counts_hits_in_its_metrics(smollm2, engine_log, start_node):
    """Twice: the second server answers from what the first one stored."""
    node = start_node()
    page = ROOT / "docs/program/engines/vllm.md"
    prompt = text(3, 700)
    small = ["--max-model-len", "2048", "--enforce-eager", "--dtype", "float32"]
    answers = []
    with Counts(node) as counts:
        for round in range(2):
            with Serve([*documented(page, node, smollm2), *small], engine_log()) as server:
                answers.append(server.complete(str(smollm2), prompt))
                hits = server.metric("vllm:external_prefix_cache_hits_total")
                matched, loaded = (
                    server.metric("cairn_vllm_matched_blocks_total"),
                    server.metric("cairn_vllm_loaded_blocks_total"),
                )
                assert (
                    server.metric("cairn_vllm_lookups_total") >= 1
                    and server.metric("cairn_vllm_internal_errors_total") == 0
                )
                if round == 0:
                    assert (hits, matched, loaded) == (0, 0, 0)
                    counts.wait_blocks(5)
                else:
                    assert hits == 128 * loaded and loaded >= 5
                    by_source = [
                        line
                        for line in server.get("/metrics").splitlines()
                        if line.startswith("vllm:prompt_tokens_cached_by_source")
                        and 'source="host"' in line
                    ]
                    assert sum(float(line.rsplit(" ", 1)[1]) for line in by_source) >= hits
        assert counts.since()["fetched_bytes"] == loaded * BLOCK_BYTES
    assert answers[0] == answers[1]


def test_the_readme_s_configuration_is_the_documentation_s():
    """And both are what the tests run."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs/program/engines/vllm.md").read_text(encoding="utf-8")
    [block] = re.findall(r"--kv-transfer-config '(\{.*?\})'", readme, flags=re.S)
    assert json.loads(block) == json.loads(
        re.findall(r"--kv-transfer-config '(\{.*?\})'", page, flags=re.S)[0]
    )
    expected = transfer_config({"address": "127.0.0.1:7400"}, None)
    assert json.loads(block) == expected
    assert HERE.name in page
