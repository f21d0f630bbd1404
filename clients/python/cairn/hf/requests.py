"""Which calls of `generate` a cache can serve."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationMode

__all__ = ["is_plain"]

# Arguments of `generate` that do not reach the model, and those with which it does not run as
# usual.
_AROUND_THE_MODEL = {
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "streamer",
}
_OTHER_WAYS = {
    "assistant_model",
    "custom_generate",
    "encoder_outputs",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
    "past_key_values",
    "synced_gpus",
}


def is_plain(
    model: Any, inputs: Any, arguments: dict[str, Any], harmless: Collection[str] = ()
) -> bool:
    """Greedy search or sampling of one sequence, without arguments that change KV.

    `harmless`: arguments of the model that do not change the KV in question.
    """
    if not isinstance(inputs, torch.Tensor) or inputs.ndim != 2 or inputs.shape[0] != 1:
        return False
    given = {name: value for name, value in arguments.items() if value is not None}
    if any(name in given for name in _OTHER_WAYS):
        return False
    settings = {name: value for name, value in given.items() if name not in _AROUND_THE_MODEL}
    try:
        # As `generate` does it: keywords over the given configuration over the model's own.
        config, for_model = model._prepare_generation_config(
            settings.pop("generation_config", None), **settings
        )
        mode = config.get_generation_mode()
    except Exception:
        return False  # `generate` says what is wrong.
    mask = for_model.pop("attention_mask", None)
    return (
        not (for_model.keys() - set(harmless))  # Nothing that shows what is not computed.
        and (mask is None or bool((mask == 1).all()))
        # With a cache that is not empty, assisted modes of transformers 5.19 give other tokens.
        and mode in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
        and (config.num_return_sequences or 1) == 1
        and config.use_cache is not False
        and config.cache_implementation is None
    )
