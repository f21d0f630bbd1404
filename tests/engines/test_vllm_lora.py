"""The connector in the real vLLM with LoRA adapters: two of them under one name, number and path,
one that is replaced while it is served, and one under two names."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from conftest import ALONE, A, ENGINE, Counts, Engine, same

LORA = {**ENGINE, **ALONE, "enable_lora": True, "max_lora_rank": 8}
RANK = 8
# Layers of `tiny`: inputs and outputs of what is adapted.
PARTS = {"q_proj": (128, 128), "k_proj": (128, 64), "v_proj": (128, 64), "o_proj": (128, 128)}


def make_adapter(folder, seed):
    """As PEFT writes one. Its numbers are large enough to change the tokens."""
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(2):
        for part, (inputs, outputs) in PARTS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, inputs, generator=draw) * 0.2
            weights[f"{name}.lora_B.weight"] = torch.randn(outputs, RANK, generator=draw) * 0.2
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": RANK,
        "bias": "none",
        "target_modules": list(PARTS),
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(folder / name, seed) for seed, name in enumerate(("one", "two"), 1)]


@pytest.fixture(scope="module")
def expected(tiny, engine_log, adapters):
    """Answers without a connector: of the model alone, and with each adapter."""
    with Engine(tiny, engine_log(), **LORA) as engine:
        found = [engine.ask(A)]
        for number, path in enumerate(adapters, 1):
            found.append(engine.ask(A, lora=[path.name, number, str(path)]))
    assert len({tuple(answers[0]["ids"]) for answers in found}) == 3
    return found


def put(adapter, served):
    shutil.rmtree(served, ignore_errors=True)
    shutil.copytree(adapter, served)


def test_adapters_under_one_name_and_path(
    tiny, engine_log, start_node, adapters, expected, tmp_path
):
    node, served = start_node(), tmp_path / "served"
    base, *with_adapter = expected

    def start():
        return Engine(tiny, engine_log(), connector={"address": node.grpc}, **LORA)

    def ask(engine, cached, answers, lora):
        found = engine.ask(A, lora=lora)
        same(found, answers)
        assert found[0]["cached"] == cached

    one_name = ["served", 1, str(served)]
    with Counts(node) as counts:
        put(adapters[0], served)
        with start() as engine:
            ask(engine, 0, with_adapter[0], one_name)
            counts.wait_blocks(31)
            ask(engine, 960, with_adapter[0], one_name)
            ask(engine, 0, base, None)
            counts.wait_blocks(62)
        # Other bytes under the same name, in a new process.
        put(adapters[1], served)
        with start() as engine:
            ask(engine, 0, with_adapter[1], one_name)
            counts.wait_blocks(93)
            ask(engine, 960, with_adapter[1], one_name)
            # Replaced while it is served: the engine still computes with what it has read, so its
            # KV is neither that of the new files, nor known to be that of the old ones.
            put(adapters[0], served)
            for _ in range(2):
                ask(engine, 0, with_adapter[1], one_name)
        assert counts.blocks() == 93
        # What the first process stored is found under any name, if the bytes are the same.
        with start() as engine:
            ask(engine, 960, with_adapter[0], ["another", 7, str(adapters[0])])
            ask(engine, 960, with_adapter[0], one_name)
            ask(engine, 960, with_adapter[1], ["two", 2, str(adapters[1])])
            ask(engine, 960, base, None)
        assert counts.blocks() == 93
