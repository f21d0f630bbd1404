"""Tiny random models that draft tokens for conftest's `tiny`. Seeded.

wide     a Llama of one layer, whose KV is as wide as a layer's of `tiny`
narrow   a Llama of one layer, whose KV is half as wide as a layer's of `tiny`
eagle    a head of one layer over the hidden states of `tiny`
eagle3   the same, over those after several of its layers
"""

import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402  (reads the variable)
from safetensors.torch import save_file  # noqa: E402
from transformers import LlamaForCausalLM  # noqa: E402

from make_model import llama_config  # noqa: E402


def wide(out, seed=3):
    torch.manual_seed(seed)
    LlamaForCausalLM(llama_config(layers=1)).to(torch.float32).save_pretrained(out)


def narrow(out, seed=3):
    torch.manual_seed(seed)
    LlamaForCausalLM(llama_config(layers=1, kv_heads=1)).to(torch.float32).save_pretrained(out)


def eagle(out, seed=3):
    torch.manual_seed(seed)
    config = llama_config(layers=1)
    head = LlamaForCausalLM(config)
    # Embeddings are the target's.
    weights = {
        name.removeprefix("model."): weight.contiguous()
        for name, weight in head.state_dict().items()
        if name.startswith("model.layers.") and "input_layernorm" not in name  # It has none.
    }
    weights["fc.weight"] = torch.randn(128, 256) * 0.05
    _save(out, config, weights, "LlamaForCausalLM", {})


def eagle3(out, seed=3):
    torch.manual_seed(seed)
    config, hidden = llama_config(layers=1), 128
    head = LlamaForCausalLM(config).state_dict()
    layer = "model.layers.0."
    weights = {
        "midlayer." + name.removeprefix(layer): weight.contiguous()
        for name, weight in head.items()
        if name.startswith(layer)
    }
    # Its attention reads the next token's embedding next to the hidden state.
    for name, rows in (("q", hidden), ("k", 64), ("v", 64)):
        weights[f"midlayer.self_attn.{name}_proj.weight"] = torch.randn(rows, 2 * hidden) * 0.05
    weights["midlayer.hidden_norm.weight"] = torch.ones(hidden)
    weights["norm.weight"] = torch.ones(hidden)
    weights["fc.weight"] = torch.randn(hidden, 2 * hidden) * 0.05
    weights["lm_head.weight"] = torch.randn(512, hidden) * 0.05
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1]}
    _save(out, config, weights, "LlamaForCausalLMEagle3", {**layers, "eagle_config": layers})


def _save(out, config, weights, architecture, more):
    out.mkdir(parents=True)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    settings = {**config.to_dict(), "architectures": [architecture], **more}
    (out / "config.json").write_text(json.dumps(settings))
