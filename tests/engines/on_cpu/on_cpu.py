"""A plug-in of vLLM that lets commands for users run on a CPU: where vLLM or LMCache refuse CPUs,
it puts the tests' stand-ins. Needs tests/engines in PYTHONPATH."""

import importlib


def _loader(module, name):
    return lambda: getattr(importlib.import_module(module), name)


def install():
    """vLLM calls this in each of its processes."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    # These register what they know by itself when they are imported, and refuse a second one.
    KVConnectorFactory._registry["LMCacheConnectorV1"] = _loader(
        "cpu_lmcache", "CpuLMCacheConnector"
    )
    OffloadingSpecFactory._registry["TieringOffloadingSpec"] = _loader(
        "cpu_offload", "CpuTieringSpec"
    )
