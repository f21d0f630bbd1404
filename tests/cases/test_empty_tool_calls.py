"""Agents send the assistant's last message back with all fields that they know. Fields that ask for
nothing change nothing.

Sources: vllm-project/vllm #12937, #30648, #44104; microsoft/autogen #3120, #5814.
"""

import json

import pytest
from programs import ask

NOTHING = [
    {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None},
    {"tool_calls": []},
    {"tool_calls": [], "function_call": None, "refusal": None, "name": "bot"},
    {"content": None},
]


@pytest.mark.parametrize(
    "fields", [{"tools": [], "tool_choice": "auto"}, {"stream_options": {"include_usage": False}}]
)
def test_a_request_whose_fields_ask_for_nothing(programs, fields):
    url, _ = programs.serve()
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **fields}
    assert ask(url + "/v1/chat/completions", body)[0] == 200


def test_an_assistants_message_with_all_fields(programs):
    url, _ = programs.serve()

    def answer(fields):
        messages = [
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": "Blue.", **fields},
            {"role": "user", "content": "Another one."},
        ]
        body = {"messages": messages, "max_tokens": 2, "temperature": 0}
        return ask(url + "/v1/chat/completions", body)

    for fields in NOTHING:
        status, _, body = answer(fields)
        assert status == 200, (fields, body)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    status, _, body = answer({"tool_calls": [call]})
    assert status == 400
    assert json.loads(body)["error"]["param"] == "messages[1].tool_calls"
