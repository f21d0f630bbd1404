"""Which requests with media or embeddings vLLM's connector caches: those that keys identify."""

import types

import pytest

from cairn.vllm.inputs import KnownInputs, known_inputs
from cairn.vllm.options import ConnectorOptions

DIGEST = "0123456789abcdef" * 4
SETTING = "kv_connector_extra_config.media"
ALL = KnownInputs(media=True, embeddings="torch.bfloat16")


def request(*identifiers, **changes):
    return types.SimpleNamespace(
        **{
            "resumable": False,
            "pooling_params": None,
            "lora_request": None,
            "mm_features": [types.SimpleNamespace(identifier=name) for name in identifiers],
            "prompt_embeds": None,
            "prompt_token_ids": [1, 2, 3],
            **changes,
        }
    )


def embeddings(dtype="torch.bfloat16", **changes):
    tensor = types.SimpleNamespace(dtype=dtype)
    return request(**{"prompt_embeds": tensor, "prompt_token_ids": None, **changes})


def config(algorithm="sha256", processor_cache=4.0, prefix_caching=True, multimodal=True):
    return types.SimpleNamespace(
        cache_config=types.SimpleNamespace(
            prefix_caching_hash_algo=algorithm, enable_prefix_caching=prefix_caching
        ),
        model_config=types.SimpleNamespace(
            dtype="torch.bfloat16",
            multimodal_config=types.SimpleNamespace(mm_processor_cache_gb=processor_cache)
            if multimodal
            else None,
        ),
    )


def test_plain_tokens_are_always_identified():
    assert KnownInputs().identified(request())
    assert KnownInputs().identified(request(lora_request=object()))


@pytest.mark.parametrize("change", [{"resumable": True}, {"pooling_params": object()}])
def test_sessions_and_pooling_never_are(change):
    assert not ALL.identified(request(**change))


def test_media_are_identified_by_digests_alone():
    assert ALL.identified(request(DIGEST, DIGEST * 2))
    assert not KnownInputs(embeddings="torch.bfloat16").identified(request(DIGEST))
    # What a caller chose, and what vLLM counts.
    for name in ("cat", "renderer0-mm-1-image-0", DIGEST[:-1], DIGEST.upper(), DIGEST + "\n"):
        assert not ALL.identified(request(DIGEST, name))


def test_embeddings_are_identified_if_their_type_is_the_model_s():
    assert ALL.identified(embeddings())
    assert not ALL.identified(embeddings("torch.float16"))
    assert not KnownInputs(media=True).identified(embeddings())
    # Among tokens: a zero token has the hash of an embedding of zeros.
    assert not ALL.identified(embeddings(prompt_token_ids=[0, 1]))


def test_with_an_adapter_neither_is():
    assert not ALL.identified(request(DIGEST, lora_request=object()))
    assert not ALL.identified(embeddings(lora_request=object()))


def test_settings():
    bypass, engine = ConnectorOptions(), ConnectorOptions(media="engine")
    assert known_inputs(config(), bypass, SETTING, True) == KnownInputs(False, "torch.bfloat16")
    assert known_inputs(config("xxhash"), bypass, SETTING, False) == KnownInputs()
    assert known_inputs(config(), engine, SETTING, True) == ALL
    assert known_inputs(config(multimodal=False), engine, SETTING, True) == ALL
    # Either cache makes vLLM hash contents.
    assert known_inputs(config(processor_cache=0), engine, SETTING, True) == ALL
    assert known_inputs(config(prefix_caching=False), engine, SETTING, True) == ALL


@pytest.mark.parametrize(
    ("wrong", "engine_keys", "reason"),
    [
        (config("xxhash"), False, "with prefix_caching_hash_algo 'xxhash' keys are Cairn's"),
        (config(processor_cache=0, prefix_caching=False), True, "mm_processor_cache_gb 0"),
    ],
)
def test_media_that_vllm_does_not_identify_are_refused_at_the_start(wrong, engine_keys, reason):
    with pytest.raises(ValueError, match=reason) as error:
        known_inputs(wrong, ConnectorOptions(media="engine"), SETTING, engine_keys)
    assert str(error.value).startswith(f"setting '{SETTING}': got 'engine', expected 'bypass'")


def test_a_value_that_does_not_exist():
    with pytest.raises(ValueError, match="media': got 'yes', expected bypass or engine"):
        ConnectorOptions.read({"media": "yes"}, "kv_connector_extra_config.")
