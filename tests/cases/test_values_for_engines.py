"""Values that an engine accepts pass as they came, also through the router before it: a limit of
-1, whole numbers as 64.0, content that is null, prompts of forms that only some engines know.

Sources: lmstudio-ai/lmstudio-bug-tracker #1829; langchain-ai/langchain #10822; gpustack #4057;
BerriAI/litellm #1854.
"""

import json

import pytest
from engine import Engine
from programs import ask

USER = [{"role": "user", "content": "Say hi"}]
CHATS = {
    "no limit": {"messages": USER, "max_tokens": -1},
    "no limit, newer": {"messages": USER, "max_completion_tokens": -1},
    "whole as a fraction": {"messages": USER, "max_tokens": 64.0},
    "beyond 32 bits": {"messages": USER, "max_tokens": 4294967295},
    "text": {"messages": USER, "max_tokens": "64"},
    "null content": {"messages": [*USER, {"role": "assistant", "content": None}]},
    "no content": {"messages": [*USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
    "no parts": {"messages": [{"role": "user", "content": []}]},
    "parts as text": {"messages": [{"role": "user", "content": ["Say hi"]}]},
    "an object": {"messages": [{"role": "user", "content": {"text": "Say hi"}}]},
    "nulls": {"messages": USER, "stream": None, "max_tokens": None},
}
PROMPTS = ["text", [1, 2, 3], [1.0, 2.0], [12, "text", 56], {"prompt_string": "text"}, ["a", [1]]]


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def url(programs, engine):
    return programs.relay(engine)


def passes(engine, url, body):
    status, _, answer = ask(url, body)
    assert status == 200, answer
    assert json.loads(engine.bodies[-1]) == body


def test_chats_pass(engine, url):
    for body in CHATS.values():
        passes(engine, url + "/v1/chat/completions", {"model": engine.model, **body})
    assert len(engine.bodies) == len(CHATS)


def test_prompts_pass(engine, url):
    for prompt in PROMPTS:
        passes(engine, url + "/v1/completions", {"model": engine.model, "prompt": prompt})
    assert len(engine.bodies) == len(PROMPTS)
