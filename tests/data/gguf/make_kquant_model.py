#!/usr/bin/env python3
"""Writes kquant.gguf, a small random Llama model that uses every weight type, and its logits.

Usage: make_kquant_model.py SMOLLM2.gguf [--output DIR]       (Python packages: gguf 0.19, numpy)

256 wide (K-quants need multiples of 256), 2 layers, 4 query heads on 2 KV heads, output not tied;
the vocabulary is the start of SmolLM2's: 17 control tokens, 235 bytes, 20 merges.
kquant.bin, little-endian: u32 number of ids, the ids (i32); u32 number of positions; for each the
position (u32) and its 272 logits (float32), computed in float64 by tests/reference/llama_numpy.py.
"""

import argparse
import pathlib
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "reference"))
from llama_numpy import Llama

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 512, 4, 2, 64, 272
LAYERS = [
    {
        "attn_q": Type.Q4_K, "attn_k": Type.Q5_K, "attn_v": Type.Q6_K, "attn_output": Type.Q4_K,
        "ffn_gate": Type.Q4_K, "ffn_up": Type.Q5_K, "ffn_down": Type.Q6_K,
    },
    {
        "attn_q": Type.Q5_1, "attn_k": Type.BF16, "attn_v": Type.F16, "attn_output": Type.Q8_0,
        "ffn_gate": Type.Q4_0, "ffn_up": Type.Q4_1, "ffn_down": Type.Q5_0,
    },
]  # fmt: skip
ROWS = {
    "attn_q": HEADS * HEAD_DIM, "attn_k": KV_HEADS * HEAD_DIM, "attn_v": KV_HEADS * HEAD_DIM,
    "attn_output": HIDDEN, "ffn_gate": FFN, "ffn_up": FFN, "ffn_down": HIDDEN,
}  # fmt: skip
COLS = {"ffn_down": FFN, "attn_output": HEADS * HEAD_DIM}
POSITIONS = [0, 1, 15, 63, 64, 65, 127, 128, 149]


def k_quant(rng, kind, rows, cols, std):
    """Random blocks of a K-quant (the package cannot encode them) whose numbers have mean 0."""
    size = GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (rows * cols // 256, size), dtype=np.uint8)

    def put(offset, values):
        blocks[:, offset : offset + 2] = values.astype(np.float16)[:, None].view(np.uint8)

    jitter = np.exp(rng.normal(0, 0.2, len(blocks))) * rng.choice([-1, 1], len(blocks))
    scale = 1.0
    for _ in range(2):  # Measure with scale 1, then set it.
        if kind == Type.Q6_K:
            put(208, scale * jitter)
        else:  # Mean of q is 7.5 or 15.5: the minimum takes it away.
            put(0, scale * jitter)
            put(2, scale * jitter * (7.5 if kind == Type.Q4_K else 15.5))
        scale = std / dequantize(blocks, kind).std()
    return blocks.reshape(rows, -1)


def matrix(rng, kind, rows, cols, std):
    if kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
        return k_quant(rng, kind, rows, cols, std)
    return quantize(rng.normal(0, std, (rows, cols)).astype(np.float32), kind)


def write_model(path, vocabulary, seed):
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, "llama")
    writer.add_name("Cairn test model with all weight types")
    writer.add_block_count(len(LAYERS))
    writer.add_context_length(1024)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    fields = GGUFReader(vocabulary).fields
    contents = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
    base = len(contents("tokens")) - len(contents("merges"))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(contents("tokens")[:VOCAB])
    writer.add_token_types(contents("token_type")[:VOCAB])
    writer.add_token_merges(contents("merges")[: VOCAB - base])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(fields["tokenizer.chat_template"].contents())

    def add(name, data, kind):
        writer.add_tensor(name + ".weight", data, raw_dtype=kind)

    def add_norm(name):
        add(name, rng.normal(1, 0.1, HIDDEN).astype(np.float32), Type.F32)

    add("token_embd", matrix(rng, Type.Q6_K, VOCAB, HIDDEN, 1.0), Type.Q6_K)
    for i, kinds in enumerate(LAYERS):
        add_norm(f"blk.{i}.attn_norm")
        add_norm(f"blk.{i}.ffn_norm")
        for name, kind in kinds.items():
            cols = COLS.get(name, HIDDEN)
            # Wider q and k make attention pick tokens instead of averaging them.
            std = (2.0 if name in ("attn_q", "attn_k") else 1.0) / np.sqrt(cols)
            add(f"blk.{i}.{name}", matrix(rng, kind, ROWS[name], cols, std), kind)
    add_norm("output_norm")
    add("output", matrix(rng, Type.Q4_K, VOCAB, HIDDEN, 3.0 / np.sqrt(HIDDEN)), Type.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("vocabulary", type=pathlib.Path, metavar="SMOLLM2.gguf")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    args = parser.parse_args()
    model = args.output / "kquant.gguf"
    write_model(model, args.vocabulary, 20240601)
    ids = np.random.default_rng(7).integers(0, VOCAB, max(POSITIONS) + 1)
    logits = Llama(model).logits(ids)
    with open(args.output / "kquant.bin", "wb") as out:
        out.write(struct.pack("<I", len(ids)) + ids.astype("<i4").tobytes())
        out.write(struct.pack("<I", len(POSITIONS)))
        for position in POSITIONS:
            out.write(struct.pack("<I", position) + logits[position].astype("<f4").tobytes())
    print(f"logits: std {logits.std():.2f}, largest {np.abs(logits).max():.2f}")


if __name__ == "__main__":
    main()
