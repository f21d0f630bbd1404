"""The settings that the connector for LMCache's in-process mode refuses at the start, and the
meaning of its settings."""

import asyncio
import threading

import pytest
from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.storage_backend import CreateStorageBackends
from vllm.config import KVTransferConfig, get_current_vllm_config, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs

import cairn
import vllm_engine
from cairn._engine import versions
from conftest import BLOCK
from engine import numbers
from lmcache_worker import Worker, config, create, metadata


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"revision": ""}, r"remote_storage_plugin\.cairn\.revision' is missing"),
        ({"engine": ""}, r"remote_storage_plugin\.cairn\.engine' is missing"),
        ({"server": "x"}, r"remote_storage_plugin\.cairn\.server' does not exist.*address"),
        (
            {"load_timeout": "x"},
            r"remote_storage_plugin\.cairn\.load_timeout': got 'x', expected a number",
        ),
        ({"address": "nowhere"}, "nowhere"),
        (
            {"extra": {"remote_serde": "cachegen"}},
            "remote_serde': got 'cachegen', expected 'naive'",
        ),
        ({"extra": {"use_layerwise": True}}, "use_layerwise': got True, expected False"),
        ({"extra": {"enable_blending": True}}, "enable_blending': got True, expected False"),
    ],
)
def test_wrong_settings_are_named(settings, text):
    with pytest.raises(IrrecoverableException, match=text):
        create(config("127.0.0.1:1", **settings))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"chunk_size": 65536, "kv_shape": (2, 2, 65536, 4, 32)},
            "chunk_size': got 65536, expected at most 65535",
        ),
        (
            {"kv_shape": (80, 2, 256, 16, 128)},
            "a chunk of 256 tokens has 167772160 bytes on each rank, expected at most 67108864",
        ),
    ],
)
def test_chunks_that_cannot_be_stored_are_refused(changes, text):
    with pytest.raises(IrrecoverableException, match=text):
        create(config("127.0.0.1:1"), metadata(**changes))


@pytest.fixture
def vllm_config(tiny, monkeypatch):
    """A real engine's configuration, as vLLM names it while it starts a worker."""
    for name, value in vllm_engine.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    def make(policy="recompute", **changes):
        transfer = KVTransferConfig(
            kv_connector="LMCacheConnectorV1", kv_role="kv_both", kv_load_failure_policy=policy
        )
        return set_current_vllm_config(
            EngineArgs(
                **{
                    "model": str(tiny),
                    "dtype": "float32",
                    "skip_tokenizer_init": True,
                    "max_model_len": 2048,
                    "block_size": BLOCK,
                    "enforce_eager": True,
                    "kv_transfer_config": transfer,
                    **changes,
                }
            ).create_engine_config()
        )

    return make


def test_in_vllm_the_engine_s_configuration_is_part_of_the_name(vllm_config):
    def spec(settings=None, **changes):
        with vllm_config(**changes):
            created = create(
                config("127.0.0.1:1", **{"revision": "", "engine": "", **(settings or {})})
            )
        return created.getWrappedConnector()._store.spec

    plain = spec()
    assert plain.revision.startswith("sha256:") and "vllm 0.32.0" in plain.numerics
    assert spec() == plain
    for other in (
        spec(hf_overrides={"rope_theta": 5.0}),
        spec(block_size=64),
        spec({"engine": "other"}),
    ):
        assert other != plain
    assert spec(hf_overrides={"rope_theta": 5.0}).revision != plain.revision


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"policy": "fail"}, "kv_load_failure_policy': got 'fail', expected 'recompute'"),
        ({"enable_lora": True}, "enable_lora': got true, expected false"),
        ({"enable_prompt_embeds": True}, "enable_prompt_embeds': got true, expected false"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size': got 2, expected 1"),
    ],
)
def test_engines_whose_chunks_would_be_wrong_are_refused(vllm_config, changes, text):
    with vllm_config(**changes), pytest.raises(IrrecoverableException, match=text):
        create(config("127.0.0.1:1"))


def test_where_vllm_does_not_recover_from_a_load_that_fails_is_refused(vllm_config, monkeypatch):
    with vllm_config():
        engine = get_current_vllm_config()
        # As on a GPU; on a CPU vLLM switches both off.
        monkeypatch.setattr(engine.scheduler_config, "async_scheduling", True)
        with pytest.raises(
            IrrecoverableException, match="async_scheduling': got true, expected false"
        ):
            create(config("127.0.0.1:1"))
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        with pytest.raises(IrrecoverableException, match="VLLM_USE_V2_MODEL_RUNNER': expected 0"):
            create(config("127.0.0.1:1"))


def test_untested_versions_are_refused(monkeypatch):
    # Once its class is asked for, and once it is used.
    adapter = cairn.lmcache.CairnConnectorAdapter
    monkeypatch.setitem(versions.TESTED, "lmcache", versions.Range("98", "99"))
    with pytest.raises(RuntimeError, match="lmcache 0.5.6 was not tested.*expected at least 98"):
        cairn.lmcache.CairnConnectorAdapter  # noqa: B018  (asking for it is the test)
    urls = ("plugin://cairn", "plugin://cairn.first", "plugin://cairns", "redis://cairn")
    assert [adapter().can_parse(url) for url in urls] == [True, True, False, False]
    with pytest.raises(
        IrrecoverableException, match="lmcache 0.5.6 was not tested.*expected at least 98"
    ):
        create(config("127.0.0.1:1", module="cairn.lmcache.connector"))


def test_lmcache_starts_without_a_storage_that_refuses(start_node):
    """So docs/program/engines/lmcache.md says where to look."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    for settings, names in (
        ({"server": "x"}, ["LocalCPUBackend"]),
        ({}, ["LocalCPUBackend", "RemoteBackend-cairn"]),
    ):
        backends = CreateStorageBackends(config(start_node(), **settings), metadata(), loop)
        assert list(backends) == names
        for backend in reversed(backends.values()):
            backend.close()
    loop.call_soon_threadsafe(loop.stop)


def test_two_plug_ins_have_settings_of_their_own(start_node):
    first, second = start_node(), start_node()
    both = config(first)
    both.remote_storage_plugins = ["cairn", "cairn.second"]
    both.extra_config.update(config(second, "cairn.second", revision="sha256:2").extra_config)
    with Worker(both) as one:
        both.remote_storage_plugins = ["cairn.second", "cairn"]
        with Worker(both) as two:
            keys = one.keys(numbers(17, 256))
            one.store(keys, one.objects(17, 256))
            assert (
                one.backend.batched_contains(keys) == 1 and two.backend.batched_contains(keys) == 0
            )
            assert (
                two.connector._store.options.revision == "sha256:2"
                and two.connector._store.options.address == second.grpc
            )
