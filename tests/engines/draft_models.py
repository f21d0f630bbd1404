"""Tiny random models that draft tokens. Seeded. All but the last do so for conftest's `tiny`.

wide     a Llama of one layer, whose KV is as wide as a layer's of `tiny`
narrow   a Llama of one layer, whose KV is half as wide as a layer's of `tiny`
eagle    a head of one layer over the hidden states of `tiny`
eagle3   the same, over those after several of its layers
mtp      a GLM-4.5 of two layers, whose third one drafts
"""

import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402  (reads the variable)
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, LlamaForCausalLM  # noqa: E402

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


def mtp(out, seed=3):
    torch.manual_seed(seed)
    hidden, vocabulary = 128, 512
    # As a model of three layers, whose last one gets what a head has besides.
    model = Glm4MoeForCausalLM(
        Glm4MoeConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=256,
            moe_intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
            max_position_embeddings=4096,
        )
    )
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.2)
    model.to(torch.float32).save_pretrained(out)
    file, layer = out / "model.safetensors", "model.layers.2."
    weights = load_file(file)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        weights[f"{layer}{norm}.weight"] = torch.ones(hidden)
    weights[f"{layer}eh_proj.weight"] = torch.randn(hidden, 2 * hidden) * 0.05
    weights[f"{layer}shared_head.head.weight"] = weights["lm_head.weight"].clone()
    weights[f"{layer}embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, file, {"format": "pt"})
    settings = json.loads((out / "config.json").read_text())
    settings |= {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    (out / "config.json").write_text(json.dumps(settings))


def _save(out, config, weights, architecture, more):
    out.mkdir(parents=True)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    settings = {**config.to_dict(), "architectures": [architecture], **more}
    (out / "config.json").write_text(json.dumps(settings))
