"""The wheel in one process with packages that bring other versions of its libraries, or load much
of their own: each is imported before it and after it, and both work."""

import subprocess
import sys

import pytest

from conftest import ROOT

EXCHANGE = (ROOT / "tests/support/exchange.py").read_text(encoding="utf-8")
OTHERS = {
    "torch": """
import torch
def call():
    assert torch.ones(100, 100).matmul(torch.ones(100, 100)).sum() == 1e6
""",
    "grpc": """
from concurrent import futures
import grpc
def call():
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("test", {"Echo": echo})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/test/Echo")(b"bytes", timeout=120) == b"bytes"
    server.stop(None).wait()
""",
    "vllm": """
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
def call():
    assert SamplingParams(max_tokens=3).max_tokens == 3
""",
}


@pytest.mark.parametrize("cairn_first", [True, False], ids=["cairn first", "cairn last"])
@pytest.mark.parametrize("other", OTHERS)
def test_both_work_in_one_process(start_node, other, cairn_first):
    imports = [EXCHANGE, OTHERS[other]] if cairn_first else [OTHERS[other], EXCHANGE]
    calls = "\ncall()\nexchange(sys.argv[1], 'grpc')\nexchange(sys.argv[1], 'local')\ncall()\n"
    program = "import sys\n" + "\n".join(imports) + calls
    done = subprocess.run(
        [sys.executable, "-c", program, start_node().grpc],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
