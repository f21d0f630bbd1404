"""Tiny random models, one for each way in which layers keep KV. Seeded: every process makes the
same weights.

layout_models.py NAME OUT             writes the model as a folder, for engines
layout_models.py --ask-all ADDRESS    answers the test's prompt with each model, through the node at
                                      ADDRESS, as JSON
"""

import contextlib
import copy
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402  (reads the variable)
import transformers  # noqa: E402
from torch import nn  # noqa: E402
from transformers.models.qwen2 import modeling_qwen2  # noqa: E402

VOCABULARY = 512
PROMPT_TOKENS = 300
WINDOW = 96  # Less than the prompt, no multiple of a block.
GENERATE = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 120,
    "intermediate_size": 192,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}


def llama(heads, kv_heads, head_dim):
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **COMMON,
            num_hidden_layers=3,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
        )
    )


def deepseek_v2():
    return transformers.DeepseekV2ForCausalLM(
        transformers.DeepseekV2Config(
            **COMMON, **EXPERTS, **LATENT, num_hidden_layers=3, num_attention_heads=4,
            q_lora_rank=None,
        )
    )  # fmt: skip


def deepseek_v3():
    return transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            **COMMON, **EXPERTS, **LATENT, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=4, q_lora_rank=40,
        )
    )  # fmt: skip


def mla():
    """As deepseek_v2, with latent vectors as wide as vLLM's kernels for CPUs want them."""
    return transformers.DeepseekV2ForCausalLM(
        transformers.DeepseekV2Config(
            **(COMMON | {"hidden_size": 128, "tie_word_embeddings": False}), **EXPERTS,
            kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None,
        )
    )  # fmt: skip


def gemma3n():
    """The last layers read the KV of the last layer of their kind before them."""
    return transformers.Gemma3nForCausalLM(
        transformers.Gemma3nTextConfig(
            **(COMMON | {"hidden_size": 128}),
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            layer_types=["sliding_attention", "full_attention"] * 3,
            sliding_window=WINDOW,
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=16,
            laurel_rank=8,
            altup_num_inputs=2,
        )
    )


def mistral():
    return transformers.MistralForCausalLM(
        transformers.MistralConfig(
            **COMMON, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
            head_dim=32, sliding_window=WINDOW,
        )
    )  # fmt: skip


def gemma2():
    return transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            **COMMON, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"] * 2,
        )
    )  # fmt: skip


def qwen2(layer_types):
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            **COMMON,
            num_hidden_layers=len(layer_types),
            num_attention_heads=6,
            num_key_value_heads=2,
            layer_types=layer_types,
            use_sliding_window="sliding_attention" in layer_types,
            sliding_window=WINDOW,
        )
    )


class BorrowingAttention(modeling_qwen2.Qwen2Attention):
    """Attends to the keys and values of the layer `source`, and has none of its own."""

    def __init__(self, config, layer_idx, source):
        super().__init__(config, layer_idx)
        del self.k_proj, self.v_proj
        self.source = source

    def forward(
        self, hidden_states, position_embeddings, attention_mask, past_key_values=None, **kwargs
    ):
        shape = hidden_states.shape[:-1]
        query = self.q_proj(hidden_states).view((*shape, -1, self.head_dim)).transpose(1, 2)
        query, _ = modeling_qwen2.apply_rotary_pos_emb(query, query, *position_embeddings)
        lender = past_key_values.layers[self.source]
        attention = modeling_qwen2.ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, modeling_qwen2.eager_attention_forward
        )
        output, weights = attention(
            self, query, lender.keys, lender.values, attention_mask,
            dropout=0.0, scaling=self.scaling, sliding_window=None, **kwargs,
        )  # fmt: skip
        return self.o_proj(output.reshape(*shape, -1).contiguous()), weights


def gemma3():
    """Five layers with a window for each one that attends to everything."""
    return transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            **(COMMON | {"hidden_size": 128}), num_hidden_layers=6, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW,
            layer_types=["sliding_attention"] * 5 + ["full_attention"],
        )
    )  # fmt: skip


def qwen3_next():
    """Three layers with a gated delta net, which keep one state, for each one with attention. vLLM
    runs the architecture only with experts and an output layer of its own, and on a CPU with heads
    of this size."""
    return transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(
            **(COMMON | {"hidden_size": 128, "tie_word_embeddings": False}), num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, head_dim=128,
            linear_num_value_heads=2, linear_num_key_heads=1, linear_key_head_dim=128,
            linear_value_head_dim=128, linear_conv_kernel_dim=4,
            layer_types=["linear_attention"] * 3 + ["full_attention"],
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
            shared_expert_intermediate_size=64, mlp_only_layers=[0, 1, 2],
        )
    )  # fmt: skip


def falcon_h1():
    """Attention and a state of Mamba 2 in each layer."""
    return transformers.FalconH1ForCausalLM(
        transformers.FalconH1Config(
            **(COMMON | {"hidden_size": 128}), num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, mamba_d_ssm=128, mamba_n_heads=4,
            mamba_d_head=32, mamba_d_state=16, mamba_n_groups=1, mamba_d_conv=4,
            mamba_chunk_size=64,
        )
    )  # fmt: skip


def lfm2():
    """Short convolutions, whose last inputs are all that they keep, and attention."""
    return transformers.Lfm2ForCausalLM(
        transformers.Lfm2Config(
            **(COMMON | {"hidden_size": 128}), num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, conv_L_cache=3,
            layer_types=["conv", "full_attention", "conv", "full_attention"],
        )
    )  # fmt: skip


def gpt_oss():
    """Every other layer has a window, all heads have sinks, and experts compute."""
    return transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            **(COMMON | {"hidden_size": 128, "intermediate_size": 64}), num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"] * 2,
            num_local_experts=4, num_experts_per_tok=2,
        )
    )  # fmt: skip


def cla():
    """Cross-layer attention (Brandon et al., arXiv 2405.12981): pairs of layers share KV."""
    model = qwen2(["full_attention"] * 6)
    for i in range(1, 6, 2):
        model.model.layers[i].self_attn = BorrowingAttention(model.config, i, i - 1)
    return model


def yoco():
    """You only cache once (Sun et al., arXiv 2405.05254): the lower half has windows, and all
    layers of the upper half read what one layer keeps of the whole sequence."""
    model = qwen2(["sliding_attention"] * 3 + ["full_attention"] * 4)
    for i in range(4, 7):
        model.model.layers[i].self_attn = BorrowingAttention(model.config, i, 3)
    return model


def uneven():
    """Layers with 6, 2, 1 and 3 KV heads (as in DeciLM, OpenELM)."""
    model = qwen2(["full_attention"] * 4)
    for i, kv_heads in enumerate([6, 2, 1, 3]):
        config = copy.deepcopy(model.config)
        config.num_key_value_heads = kv_heads
        model.model.layers[i].self_attn = modeling_qwen2.Qwen2Attention(config, i)
    return model


def t5():
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY, d_model=120, d_kv=24, d_ff=192, num_layers=3, num_heads=4,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


MODELS = {
    "mha": lambda: llama(4, 4, 32),
    "mqa": lambda: llama(4, 1, 32),
    "gqa": lambda: llama(6, 2, 40),
    "uneven": uneven,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "gemma3n": gemma3n,
    "cla": cla,
    "yoco": yoco,
    "mistral": mistral,
    "gemma2": gemma2,
    "t5": t5,
}

# Several KV cache groups in an engine.
HYBRID = {"gemma3": gemma3, "gpt_oss": gpt_oss, "qwen3_next": qwen3_next}
# For an engine alone.
WIDE = {"mla": mla}
# Layers with a state, for transformers.
STATES = {"qwen3_next": qwen3_next, "falcon_h1": falcon_h1, "lfm2": lfm2}


def make(name):
    """The model, in float32."""
    torch.manual_seed(20)
    torch.set_num_threads(1)
    model = (MODELS | HYBRID | WIDE | STATES)[name]()
    for weights in model.parameters():
        if weights.dim() > 1:
            # Tokens must depend on the KV, or wrong bytes would go unnoticed.
            nn.init.normal_(weights, std=0.15)
    model.config._name_or_path = f"layout-{name}"
    model.generation_config.eos_token_id = None
    return model.to(torch.float32).eval()


def prompt(seed, tokens=PROMPT_TOKENS):
    """Random tokens, none of them special."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(8, VOCABULARY, (1, tokens), generator=random)


def cache_for(model, address, **settings):
    """The class of cairn.hf that fits the model."""
    import cairn.hf

    kind = cairn.hf.EncoderCache if model.config.is_encoder_decoder else cairn.hf.PrefixCache
    return kind(model, address=address, revision="seed 20", lookup_timeout=5.0, **settings)


def ask(name, address):
    """The answers of a process of its own, and the counts of its cache."""
    model = make(name)
    with cache_for(model, address) as cache:
        tokens = cache.generate(prompt(1), **GENERATE)[0].tolist()
        return {"tokens": tokens, **cache.counters()}


def main(name, argument):
    if name == "--ask-all":
        with contextlib.redirect_stdout(sys.stderr):
            answers = {each: ask(each, argument) for each in MODELS}
        print(json.dumps(answers))
    else:
        make(name).save_pretrained(argument)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in [*MODELS, *HYBRID, "--ask-all"]:
        sys.exit(__doc__)
    main(*sys.argv[1:])
