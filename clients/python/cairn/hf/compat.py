"""The parts of transformers that the caches use. No version that is tested differs in them."""

from __future__ import annotations

from cairn._engine.surface import Surface
from cairn._engine.versions import check_version

__all__ = ["SURFACE", "check"]


def check() -> None:
    """RuntimeError: a version of transformers that lacks what is used."""
    import transformers

    check_version("transformers", transformers.__version__, SURFACE)


SURFACE = Surface(
    package="transformers",
    uses={
        "transformers.cache_utils": {
            "Cache": ("layers", "update"),
            "DynamicCache": "config=",
            "DynamicLayer": ("is_initialized", "keys", "update", "values"),
            "DynamicSlidingWindowLayer": ("activate_past_recording", "is_initialized", "update"),
            "EncoderDecoderCache": ("cross_attention_cache",),
            "LinearAttentionAndFullAttentionLayer": (),
            "LinearAttentionLayer": (
                "conv_states",
                "has_previous_state",
                "number_of_states",
                "recurrent_states",
                "update_conv_state(conv_states, state_idx=)",
                "update_recurrent_state(recurrent_states, state_idx=)",
            ),
        },
        "transformers.generation.utils": {
            "GenerationMixin": ("_prepare_generation_config", "generate"),
        },
        "transformers.generation.configuration_utils": {
            "GenerationConfig": (
                "cache_implementation",
                "get_generation_mode",
                "num_return_sequences",
                "use_cache",
            ),
            "GenerationMode": ("GREEDY_SEARCH", "SAMPLE"),
        },
        "transformers.modeling_outputs": {"BaseModelOutput": "last_hidden_state="},
    },
)
