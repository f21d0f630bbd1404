"""Inputs of requests that are no tokens, and whether keys identify them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cairn.vllm.options import ConnectorOptions

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

__all__ = ["KnownInputs", "known_inputs"]

# A digest of contents, as vLLM's hasher writes it. A caller's own identifier seldom looks so.
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{128}")


@dataclass(frozen=True)
class KnownInputs:
    """The inputs next to tokens that the keys of an engine's blocks identify. By default none."""

    media: bool = False
    """Images and the like."""
    embeddings: str = ""
    """Embeddings of this type, as in "torch.bfloat16": keys have the digest of their bytes, and the
    type is what these mean."""

    def identified(self, request: Request) -> bool:
        """Whether all that the KV depends on is known, apart from an adapter, which is `Adapters`'
        concern."""
        # Pooling computes other KV, and a session's prompt changes.
        if getattr(request, "resumable", False) or request.pooling_params is not None:
            return False
        if not request.mm_features and request.prompt_embeds is None:
            return True
        # With an adapter, keys are ours, over tokens.
        return (
            request.lora_request is None
            and self._identified_media(request)
            and self._identified_embeddings(request)
        )

    def _identified_media(self, request: Request) -> bool:
        features = request.mm_features or ()
        return not features or (
            self.media and all(_DIGEST.fullmatch(item.identifier) for item in features)
        )

    def _identified_embeddings(self, request: Request) -> bool:
        embeddings = request.prompt_embeds
        if embeddings is None:
            return True
        # Among tokens, vLLM's hash of a zero token is that of an embedding of zeros.
        return request.prompt_token_ids is None and str(embeddings.dtype) == self.embeddings


def known_inputs(
    vllm_config: VllmConfig, options: ConnectorOptions, setting: str, engine_keys: bool
) -> KnownInputs:
    """`setting`: the full name of the setting `media`. `engine_keys`: keys are vLLM's own.

    ValueError: media, where vLLM's keys do not have digests of them.
    """
    model = vllm_config.model_config
    embeddings = str(model.dtype) if engine_keys else ""
    if options.media == "bypass":
        return KnownInputs(embeddings=embeddings)
    got = f"setting '{setting}': got '{options.media}', expected 'bypass', because "
    cache = vllm_config.cache_config
    if not engine_keys:
        raise ValueError(
            f"{got}only vLLM's own keys have media, and with prefix_caching_hash_algo "
            f"'{cache.prefix_caching_hash_algo}' keys are Cairn's"
        )
    multimodal = model.multimodal_config
    if multimodal and not multimodal.mm_processor_cache_gb and not cache.enable_prefix_caching:
        raise ValueError(
            f"{got}with mm_processor_cache_gb 0 and no prefix caching vLLM counts media and does "
            "not hash them: two engines would give two images one name"
        )
    return KnownInputs(media=True, embeddings=embeddings)
