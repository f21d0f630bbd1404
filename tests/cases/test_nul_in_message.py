"""U+0000 is legal in JSON text. Agents that read binary files send it, and nothing behind it gets
lost.

Sources: ggml-org/llama.cpp #25543; leehack/llamadart #608; NVIDIA/TensorRT-LLM #7533.
"""

import json

from programs import ask

TAIL = " Now tell me a long story about a red fox and a lazy dog in the snow."


def test_what_follows_it_counts(programs):
    url, _ = programs.serve()

    def tokens(text):
        body = {"prompt": text, "max_tokens": 1, "temperature": 0}
        status, _, answer = ask(url + "/v1/completions", body)
        assert status == 200, answer
        return json.loads(answer)["usage"]["prompt_tokens"]

    assert tokens("One word.\0" + TAIL) >= tokens("One word." + TAIL) > tokens("One word.")


def test_stops_and_models_may_have_it(programs):
    url, _ = programs.serve()
    body = {"prompt": "1 2 3", "max_tokens": 2, "stop": ["\0", "\0x"]}
    assert ask(url + "/v1/completions", body)[0] == 200
    body["model"] = "a\0b"
    status, _, answer = ask(url + "/v1/completions", body)
    assert status == 404
    assert json.loads(answer)["error"]["code"] == "model_not_found"
