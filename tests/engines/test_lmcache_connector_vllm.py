"""LMCache's connector in the real vLLM, over a node: it needs a stand-in on a CPU
(`cpu_lmcache.py`)."""

import json
import os
import re

import yaml
from lmcache.v1.config import LMCacheEngineConfig

import vllm_engine
from conftest import ENGINE, HERE, ROOT, A, B, C, Counts, Engine, same, stored, timed
from test_vllm import flip_bytes


def documented(node, folder):
    """The page's configuration file, word for word but for the node."""
    page = (ROOT / "docs/program/engines/lmcache.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    path = folder / "lmcache.yaml"
    path.write_text(text.replace("127.0.0.1:7400", node.grpc))
    return path


def environment(path, **more):
    # Less memory than LMCache takes by itself, and no letters to its authors.
    return {
        "LMCACHE_CONFIG_FILE": str(path),
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.1",
        "LMCACHE_TRACK_USAGE": "false",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        **more,
    }


ENGINE_CHUNK = stored(2 * 2 * 256 * 2 * 32 * 4)


def test_a_second_engine_loads_what_the_first_one_stored(
    tiny, engine_log, start_node, reference, tmp_path
):
    """Three processes each, as documented; then what keeps requests apart, and what does not."""
    node = start_node()
    path = documented(node, tmp_path)
    with Counts(node) as counts:
        with Engine(tiny, engine_log(), environment(path), lmcache=True, **ENGINE) as engine:
            same(engine.ask(A), reference(A))
            counts.wait_blocks(3)  # 992 tokens: the rest fills no chunk.
            assert counts.since()["fetched_bytes"] == 0
        # Without LMCache's own memory, each answer comes from the node.
        with Engine(
            tiny, engine_log(), environment(path, LMCACHE_LOCAL_CPU="false"), lmcache=True, **ENGINE
        ) as engine:
            warm = engine.ask(A)
            same(warm, reference(A))
            assert warm[0]["cached"] == 768 and counts.since()["fetched_bytes"] == 3 * ENGINE_CHUNK
            miss = engine.ask(B)
            same(miss, reference(B))
            assert miss[0]["cached"] == 0
            # LMCache drops vLLM's salt, but not its own tags.
            assert engine.ask(A, salts=["red"])[0]["cached"] == 768
            tagged = engine.ask(A, transfer={"lmcache.tag.user": "red"})
            same(tagged, reference(A))
            assert tagged[0]["cached"] == 0
            counts.wait_blocks(9)
            assert engine.ask(A, transfer={"lmcache.tag.user": "red"})[0]["cached"] == 768
            assert engine.ask(A, transfer={"lmcache.tag.user": "blue"})[0]["cached"] == 0


def test_an_engine_outlives_its_node(tiny, engine_log, start_node, reference, tmp_path):
    """Killed, back from disk with damaged bytes, hung: the same tokens each time."""
    disk = tmp_path / "disk"
    disk.mkdir()
    first = start_node("--disk.path", str(disk))
    path = documented(first, tmp_path)
    with Engine(
        tiny, engine_log(), environment(path, LMCACHE_LOCAL_CPU="false"), lmcache=True, **ENGINE
    ) as engine:
        with Counts(first) as counts:
            same(engine.ask(A), reference(A))
            counts.wait_blocks(3)
            counts.flush()
        first.kill()
        answers, seconds = timed(lambda: engine.ask(A))
        same(answers, reference(A))
        assert answers[0]["cached"] == 0 and seconds < 5

        again = ("--listen", first.grpc, "--disk.path", str(disk), "--disk.scrub_rate", "0B")
        second = start_node(*again)
        with Counts(second) as counts:
            for _ in range(100):
                same(engine.ask(A), reference(A))
                if counts.since()["fetched_bytes"]:
                    break
            assert (
                counts.since()["fetched_bytes"] == 3 * ENGINE_CHUNK
                and counts.since()["from_disk"] > 0
            )
        second.kill()

        assert flip_bytes(disk) > 0
        third = start_node(*again)
        with Counts(third) as counts:
            for _ in range(100):
                same(engine.ask(A), reference(A))
                if counts.since()["corrupt_blocks"]:
                    break
            assert counts.since()["corrupt_blocks"] > 0
            for _ in range(100):
                before = counts.since()["fetched_bytes"]
                same(engine.ask(A), reference(A))
                if counts.since()["fetched_bytes"] - before == 3 * ENGINE_CHUNK:
                    break
            assert counts.since()["fetched_bytes"] - before == 3 * ENGINE_CHUNK
        third.freeze()
        for prompt in (A, B, C):
            answers, seconds = timed(lambda: engine.ask(prompt))
            same(answers, reference(prompt))
            assert seconds < 5


def test_the_documented_command_is_what_is_run():
    page = (ROOT / "docs/program/engines/lmcache.md").read_text(encoding="utf-8")
    [block] = re.findall(r"--kv-transfer-config '(\{.*?\})'", page, flags=re.S)
    run = vllm_engine.transfer_config(None, None, lmcache=True)
    # But for the stand-in, which is a subclass.
    assert run.pop("kv_connector_module_path") == "cpu_lmcache"
    assert json.loads(block) == {**run, "kv_connector": "LMCacheConnectorV1"}
    [text] = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    assert set(yaml.safe_load(text)) <= set(LMCacheEngineConfig.from_defaults().to_dict())
