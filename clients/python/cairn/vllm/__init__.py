"""Adapters for vLLM: docs/engines/vllm.md.

`CairnConnector` is loaded by vLLM itself, through `kv_connector_module_path`: "cairn.vllm".
"""

from cairn.vllm.connector import CairnConnector

__all__ = ["CairnConnector"]
