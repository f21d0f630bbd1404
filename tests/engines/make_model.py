"""Writes a model folder that engines can serve without a hub.

make_model.py smollm2 GGUF OUT    weights and tokenizer of a GGUF file, in float32
make_model.py tiny OUT            a random Llama of 2 layers, without a tokenizer
make_model.py bytes OUT           the same with a tokenizer, of one token for each byte
make_model.py sounds OUT          a random Qwen2-Audio with that tokenizer; a second is 25 tokens
"""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402  (reads the variable)

SOUND = "<|AUDIO|>"


def smollm2(gguf, out):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = os.path.split(os.path.abspath(gguf))
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    # transformers saves nothing that came from GGUF, even in plain numbers: the weights go into a
    # fresh model.
    settings = {
        name: value
        for name, value in read.config.to_dict().items()
        if name != "quantization_config"
    }
    config = type(read.config).from_dict(settings)
    config.dtype = torch.float32
    model = type(read)(config).to(torch.float32)
    model.load_state_dict(read.state_dict(), strict=False)
    model.tie_weights()
    model.generation_config = read.generation_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)


def llama_config(layers=2, kv_heads=2):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


def tiny(out):
    from transformers import LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(llama_config())
    for weights in model.parameters():
        if weights.dim() > 1:
            # Tokens must depend on the KV, or wrong bytes would go unnoticed.
            torch.nn.init.normal_(weights, std=0.3)
    model.to(torch.float32).save_pretrained(out)


def sounds(out):
    """Qwen2-Audio: for models that see, vLLM needs torchvision, which PyPI has for CUDA alone."""
    from safetensors.torch import load_file, save_file
    from transformers import (
        Qwen2AudioConfig,
        Qwen2AudioEncoderConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        Qwen2Config,
        WhisperFeatureExtractor,
    )

    torch.manual_seed(1)
    tokenizer = byte_tokenizer()
    marks = [SOUND, "<|audio_bos|>", "<|audio_eos|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    ears = Qwen2AudioEncoderConfig(
        d_model=64, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=128
    )
    words = Qwen2Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    sound = tokenizer.convert_tokens_to_ids(SOUND)
    model = Qwen2AudioForConditionalGeneration(
        Qwen2AudioConfig(audio_config=ears, text_config=words, audio_token_index=sound)
    )
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.3)
    model.to(torch.float32).save_pretrained(out)
    # transformers 5.19 writes a name that neither published models nor vLLM have.
    file = os.path.join(out, "model.safetensors")
    weights = {
        name.replace("language_model.model.model.", "language_model.model."): weight
        for name, weight in load_file(file).items()
    }
    save_file(weights, file, {"format": "pt"})
    Qwen2AudioProcessor(
        feature_extractor=WhisperFeatureExtractor(feature_size=ears.num_mel_bins),
        tokenizer=tokenizer,
    ).save_pretrained(out)


def byte_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    return fast


if __name__ == "__main__":
    if sys.argv[1:2] == ["smollm2"] and len(sys.argv) == 4:
        smollm2(*sys.argv[2:])
    elif sys.argv[1:2] == ["tiny"] and len(sys.argv) == 3:
        tiny(sys.argv[2])
    elif sys.argv[1:2] == ["bytes"] and len(sys.argv) == 3:
        tiny(sys.argv[2])
        byte_tokenizer().save_pretrained(sys.argv[2])
    elif sys.argv[1:2] == ["sounds"] and len(sys.argv) == 3:
        sounds(sys.argv[2])
    else:
        sys.exit(__doc__)
