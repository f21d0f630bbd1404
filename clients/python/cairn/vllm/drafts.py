"""Models that draft tokens, and what their KV asks of the connector.

A draft's layers are in vLLM's KV cache groups, next to the target's or in groups of their own. A
draft that reads the target's hidden states (EAGLE, MTP) has, at a position, KV that depends on the
next token too. So a block of its layers is right only if the block after it is the same as well:

    tokens   0 .............. 32 .............. 64 .............. 96
    target   [      A        ][       B        ][       C        ]    goes on at 96
    draft    [      A, 32    ][       B, 64    ][       C, ?     ]    goes on at 64: C is the proof
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cairn._engine.weights import weights_revision

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from cairn.vllm.options import ConnectorOptions

__all__ = [
    "check_drafts",
    "check_groups",
    "check_no_draft_kv",
    "draft_identity",
    "has_draft_kv",
    "needs_proof",
]

_WITHOUT_KV = ("ngram", "suffix")
_WITH_KV = ("draft_model", "eagle", "eagle3", "mtp")


def check_drafts(vllm_config: VllmConfig) -> None:
    """ValueError: a method of which it is not known what its KV depends on."""
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method not in _WITHOUT_KV + _WITH_KV:
        raise ValueError(
            f"setting 'speculative_config.method': got '{speculative.method}', "
            f"expected {', '.join(_WITHOUT_KV + _WITH_KV)} or none, "
            "since it is not known what the KV of other drafts depends on"
        )


def check_groups(vllm_config: VllmConfig, groups: Sequence[Any]) -> None:
    """ValueError: the engine would write the draft's KV over the target's."""
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method == "draft_model" and len(groups) > 1:
        raise ValueError(
            "setting 'speculative_config.method': got 'draft_model' for a model with "
            f"{len(groups)} KV cache groups, expected one group, since vLLM gives the draft the "
            "blocks of the first group, whichever its layers are in. With vLLM's setting "
            "disable_hybrid_kv_cache_manager there is one group"
        )


def check_no_draft_kv(vllm_config: VllmConfig) -> None:
    """ValueError: a draft keeps KV, and the caller's keys do not tell which draft it is."""
    if has_draft_kv(vllm_config):
        raise ValueError(
            f"setting 'speculative_config.method': got '{vllm_config.speculative_config.method}', "
            f"expected {', '.join(_WITHOUT_KV)} or none, since a draft model has KV of its own"
        )


def has_draft_kv(vllm_config: VllmConfig) -> bool:
    """Whether a draft keeps KV of its own."""
    speculative = vllm_config.speculative_config
    return speculative is not None and speculative.method in _WITH_KV


def needs_proof(vllm_config: VllmConfig, groups: Sequence[Any]) -> tuple[bool, ...]:
    """By KV cache group: whether a block of it is of use only if the block after it is there.

    vLLM says which groups have a draft's layers, or else means all of them.
    """
    speculative = vllm_config.speculative_config
    if not has_draft_kv(vllm_config) or not speculative.use_eagle_block_drop():
        return (False,) * len(groups)
    flags = tuple(bool(getattr(group, "is_eagle_group", False)) for group in groups)
    return flags if any(flags) else (True,) * len(groups)


def draft_identity(vllm_config: VllmConfig, options: ConnectorOptions) -> str:
    """Everything that decides the KV of the draft's layers, in a text of one length. Empty: there
    are none.

    ValueError: it cannot be found out which weights the draft has.
    """
    if not has_draft_kv(vllm_config):
        return ""
    speculative = vllm_config.speculative_config
    draft = speculative.draft_model_config
    settings = {
        "config": draft.hf_config.to_dict(),
        "dtype": str(draft.dtype),
        "method": speculative.method,
        "parallel_drafting": getattr(speculative, "parallel_drafting", False),
        "quantization": draft.quantization,
        "revision": _revision(vllm_config, options),
        "tokens": speculative.num_speculative_tokens,
    }
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _revision(vllm_config: VllmConfig, options: ConnectorOptions) -> str:
    target, draft = vllm_config.model_config, vllm_config.speculative_config.draft_model_config
    if options.draft_revision:
        return options.draft_revision
    if options.revision and draft.model == target.model:
        return options.revision  # MTP: the same files.
    if vllm_config.load_config.load_format == "dummy":
        problem = "load_format 'dummy' has no weights"
    else:
        try:
            return weights_revision(draft.model, draft.revision)
        except ValueError:
            problem = f"it cannot be found out which weights the draft '{draft.model}' has"
    raise ValueError(
        f"{problem}: name them with the setting 'kv_connector_extra_config.draft_revision'"
    )
