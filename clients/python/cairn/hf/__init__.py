"""Keeps KV of Hugging Face `generate` at a cache node: docs/program/engines/huggingface.md.

prefixes = cairn.hf.PrefixCache(model, address="127.0.0.1:7400")
output = prefixes.generate(input_ids, max_new_tokens=50)

`EncoderCache` does the same for models with an encoder and a decoder.
"""

from cairn.hf.encoder import EncoderCache
from cairn.hf.prefix import PrefixCache

__all__ = ["EncoderCache", "PrefixCache"]
