"""Models whose file has another chat template, or none, or the known one as editors save it.
Completions work; chats work, or say what is the matter, and nothing of the server's files.

Sources: vllm-project/vllm #10299, #39279, #18140; ggml-org/llama.cpp #5921; ollama/ollama #3760;
runpod-workers/worker-vllm #129.
"""

import json

import pytest
from gguf_edit import with_text
from programs import MODEL, ask

KEY = "tokenizer.chat_template"
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SAME = {
    "as it is": CHATML,
    "a line break at its end": CHATML + "\n",
    "CRLF at its end": CHATML + "\r\n",
    "a mark in front": "\ufeff" + CHATML,
}
OTHERS = {
    "instructions": "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}",
    "broken": "{% for m in messages %}{{ m.content",
    "empty": "",
    "none": None,
}


def ask_both(url):
    """A completion has to work; how the chat went."""
    body = {"max_tokens": 2, "temperature": 0}
    status, _, answer = ask(url + "/v1/completions", {"prompt": "A B", **body})
    assert status == 200, answer
    chat = {"messages": [{"role": "user", "content": "Hi"}], **body}
    status, _, answer = ask(url + "/v1/chat/completions", chat)
    return status, json.loads(answer)


@pytest.mark.parametrize("name", SAME)
def test_one_template_in_every_spelling(programs, tmp_path, name):
    model = with_text(MODEL, tmp_path / "model.gguf", KEY, SAME[name])
    url, _ = programs.serve(model=model)
    status, answer = ask_both(url)
    assert status == 200, answer


@pytest.mark.parametrize("name", OTHERS)
def test_a_template_that_is_not_known(programs, tmp_path, name):
    model = with_text(MODEL, tmp_path / "model.gguf", KEY, OTHERS[name])
    url, _ = programs.serve(model=model)
    status, answer = ask_both(url)
    error = answer["error"]
    assert status == 400
    assert error["code"] != "model_not_found"  # Clients would take its name for wrong.
    assert error["param"] == "messages"
    assert "template" in error["message"]
    assert "/v1/completions" in error["message"]
    assert str(tmp_path) not in error["message"]
    done = programs.cairn("generate", "--model", model, "--prompt", "x", "--max-tokens", "1")
    assert done.returncode == 1
    assert "--raw" in done.stderr
