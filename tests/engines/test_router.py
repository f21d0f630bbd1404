"""cairn-router before two real vLLM engines: it knows from their own events what they hold."""

import concurrent.futures
import contextlib
import json
import urllib.request

import pytest

from conftest import Counts, wait_until
from routed_engines import RoutedEngines
from serve import complete, post
from vllm_engine import transfer_config

BLOCK = 32  # The smallest one on a CPU.
MODEL = "bytes"
PROMPT = 50 * BLOCK  # Tokens, of a byte each.
SMALL = [
    *("--max-model-len", 2048, "--dtype", "float32", "--served-model-name", MODEL),
]


class Pair(RoutedEngines):
    """Two engines, and a router that follows the events of both."""

    def __init__(self, stack, model, engine_log, router_log, *arguments, policy="cost"):
        super().__init__(
            stack, 2, model, BLOCK, [*SMALL, *arguments], engine_log, router_log, policy
        )

    def served(self):
        """Requests that each engine has answered."""
        return [engine.metric("vllm:request_success_total") for engine in self.engines]

    def ask(self, prompt, tokens=8):
        """Through the router: the engine that answered, and the usage."""
        before = self.served()
        usage = complete(f"http://{self.router.http}", MODEL, prompt, tokens)["usage"]
        wait_until(lambda: sum(self.served()) > sum(before), 20, "an answer that is counted")
        [engine] = [i for i, (a, b) in enumerate(zip(before, self.served())) if b > a]
        return engine, usage

    def ask_directly(self, engine, prompt, tokens=8):
        """Past the router, which cannot know of it but by events."""
        before = self.metric("engine_events_total")
        usage = complete(self.engines[engine].url, MODEL, prompt, tokens)["usage"]
        wait_until(lambda: self.metric("engine_events_total") > before, 20, "events")
        return usage


def post_nothing(url):
    urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60).close()


def prompt(number, tokens=PROMPT):
    """Text that begins differently for each number."""
    words, state = f"conversation {number}: ", number * 2654435761 % (1 << 31)
    while len(words) < tokens:
        state = (state * 1103515245 + 12345) % (1 << 31)
        words += "abcdefghijklmnopqrstuvwxyz .,"[(state >> 8) % 29]
    return words[:tokens]


def cached(usage):
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


@pytest.fixture(scope="module")
def pair(byte_model, engine_log, tmp_path_factory):
    log = tmp_path_factory.mktemp("router") / "router.log"
    with contextlib.ExitStack() as stack:
        yield Pair(stack, byte_model, engine_log, log)


def test_requests_go_where_their_prefix_lies(pair):
    """And both engines get work."""
    before = pair.served()
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        answers = list(
            clients.map(
                lambda number: complete(f"http://{pair.router.http}", MODEL, prompt(number)),
                range(8),
            )
        )
    assert all(answer["usage"]["prompt_tokens"] == PROMPT for answer in answers)
    assert all(cached(answer["usage"]) == 0 for answer in answers)
    wait_until(lambda: sum(pair.served()) >= sum(before) + 8, 20, "answers that are counted")
    assert all(now > then for now, then in zip(pair.served(), before))
    for number in range(8):
        _, usage = pair.ask(prompt(number) + " And then? " + prompt(100 + number, 64))
        # All blocks of the prompt.
        assert cached(usage) >= PROMPT


def test_what_an_engine_computed_for_others_is_known(pair):
    """The router never sent these prompts: only the engines' events tell who holds them."""
    for number in range(20, 28):
        engine = number % 2
        pair.ask_directly(engine, prompt(number))
    for number in range(20, 28):
        engine, usage = pair.ask(prompt(number) + " More? ")
        assert engine == number % 2
        assert cached(usage) == PROMPT
    assert pair.metric("engine_event_junk_total") == 0
    assert pair.metric("engine_skipped_blocks_total") == 0
    assert pair.metric("engine_forgotten_total") == 0


def test_chats_with_a_common_beginning_stay_together(pair):
    """The engine's own template and tokenizer make the tokens that its events have."""

    def chat(question):
        before = pair.served()
        messages = [
            {"role": "system", "content": prompt(50, 15 * BLOCK)},
            {"role": "user", "content": question},
        ]
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}
        usage = post(f"http://{pair.router.http}/v1/chat/completions", body)["usage"]
        wait_until(lambda: sum(pair.served()) > sum(before), 20, "an answer that is counted")
        [engine] = [i for i, (a, b) in enumerate(zip(before, pair.served())) if b > a]
        return engine, usage

    engine, usage = chat("What is this about?")
    assert cached(usage) == 0
    for question in ("Who wrote it?", "When?", "And why so long?"):
        again, usage = chat(question)
        assert again == engine
        assert cached(usage) >= 14 * BLOCK


def test_an_engine_that_forgets_is_not_asked_for_it(pair):
    """A block that left an engine's cache is not believed to be there."""
    pair.ask_directly(0, prompt(60))
    before = pair.metric('engine_events_total{kind="cleared"}')
    # vLLM publishes in its steps.
    post_nothing(pair.engines[0].url + "/reset_prefix_cache")
    pair.ask_directly(0, prompt(61))
    wait_until(
        lambda: pair.metric('engine_events_total{kind="cleared"}') > before, 20, "a cleared cache"
    )
    pair.ask_directly(1, prompt(60))
    engine, usage = pair.ask(prompt(60) + " And? ")
    assert (engine, cached(usage)) == (1, PROMPT)


def test_what_a_cache_node_holds_for_engines_is_known(
    byte_model, engine_log, start_node, tmp_path_factory
):
    """Blocks that have left an engine's memory and lie at the node: the connector tells of them in
    the engine's own stream, and what they stand for was told by the engine that stored them."""
    log = tmp_path_factory.mktemp("router") / "router.log"
    node = start_node()
    transfer = transfer_config({"address": node.grpc}, None)
    # Room for one prompt and a little more.
    few = ["--num-gpu-blocks-override", 66]
    with contextlib.ExitStack() as stack:
        pair = Pair(
            stack,
            byte_model,
            engine_log,
            log,
            *few,
            *("--kv-transfer-config", json.dumps(transfer)),
            policy="affinity",
        )
        counts = stack.enter_context(Counts(node))
        for number in range(6):
            pair.ask_directly(0, prompt(number))
        counts.wait_blocks(6 * PROMPT // BLOCK)
        # Both engines tell of the node's blocks in their next steps, and the first one of what has
        # left its memory.
        for engine in (0, 1):
            pair.ask_directly(engine, prompt(30 + engine, 64))
        wait_until(
            lambda: pair.metric("engine_known_blocks") >= 2 * 6 * PROMPT // BLOCK, 20, "blocks"
        )
        # Both can load them, as far as the router knows, so that chance decides between the two. It
        # does not while one seems to be at work still: engines tell of their load now and then.
        served = [0, 0]
        for question in range(20):
            for number in range(6):
                engine, usage = pair.ask(f"{prompt(number)} Question {question}?")
                assert cached(usage) == PROMPT
                served[engine] += 1
            if all(served):
                break
        assert all(served)
        for engine in pair.engines:
            assert engine.metric("vllm:external_prefix_cache_hits_total") > 0
