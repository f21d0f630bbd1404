"""Tiny random models that draft tokens for conftest's `tiny`. Seeded.

wide     a Llama of one layer, whose KV is as wide as a layer's of `tiny`
narrow   a Llama of one layer, whose KV is half as wide as a layer's of `tiny`
eagle    a head of one layer over the hidden states of `tiny`
"""

import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402  (reads the variable)
from safetensors.torch import save_file  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402


def _config(kv_heads):
    return LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


def wide(out, seed=3):
    torch.manual_seed(seed)
    LlamaForCausalLM(_config(2)).to(torch.float32).save_pretrained(out)


def narrow(out, seed=3):
    torch.manual_seed(seed)
    LlamaForCausalLM(_config(1)).to(torch.float32).save_pretrained(out)


def eagle(out, seed=3):
    torch.manual_seed(seed)
    config = _config(2)
    head = LlamaForCausalLM(config)
    # Embeddings are the target's.
    weights = {
        name.removeprefix("model."): weight.contiguous()
        for name, weight in head.state_dict().items()
        if name.startswith("model.layers.") and "input_layernorm" not in name  # It has none.
    }
    weights["fc.weight"] = torch.randn(128, 256) * 0.05
    out.mkdir(parents=True)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    settings = {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    (out / "config.json").write_text(json.dumps(settings))
