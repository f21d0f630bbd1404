"""cairn-router follows a real vLLM whose model has several groups of layers: it knows before each
request how much of the prompt the engine can use, which is what the engine then says that it has
used. Blocks leave all the time: the engine has room for three prompts."""

import contextlib
import random
import shutil

import pytest

import layout_models
from conftest import made, wait_until
from routed_engines import RoutedEngines
from serve import complete, post
from test_router import cached

MODEL = "groups"
# By model: the size of a block, and what vLLM needs to keep prefixes of it.
WINDOWS = ("gemma3", 32, ["--dtype", "float32", "--num-gpu-blocks-override", 220])
STATES = (
    "qwen3_next",
    128,
    [
        *("--dtype", "bfloat16", "--num-gpu-blocks-override", 40),
        *("--max-num-batched-tokens", 256, "--enable-prefix-caching"),
        *("--prefix-cache-retention-interval", 256),
    ],
)


class Followed(RoutedEngines):
    """One engine, and a router that follows its events."""

    def __init__(self, stack, name, block, arguments, folder, engine_log):
        layout_models.make(name).save_pretrained(folder)
        for part in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(made("bytes") / part, folder)
        arguments = ["--max-model-len", 1024, "--served-model-name", MODEL, *arguments]
        super().__init__(stack, 1, folder, block, arguments, engine_log, folder / "router.log")
        self.block = block
        self.engine = self.engines[0]
        self._markers = 0

    def held(self, prompt):
        """Tokens of the prompt that the engine can use, as far as the router knows."""
        body = {"token_ids": prompt, "block_size": self.block}
        answer = post(f"http://{self.router.http}/query", body)["default"]
        return answer.get(self.engine.url, {"longest_matched": 0})["longest_matched"]

    def ask(self, prompt):
        """The usage. Not through the router, which knows from events alone."""
        usage = complete(self.engine.url, MODEL, prompt, 2)["usage"]
        # Events are in order: when the router knows of a later prompt, it knows of this one.
        self._markers += 1
        marker = [
            200 + self._markers % 50,
            *random.Random(self._markers).choices(range(200), k=self.block),
        ]
        complete(self.engine.url, MODEL, marker, 1)
        wait_until(lambda: self.held(marker) == self.block, 20, "the last event")
        return usage


@pytest.mark.parametrize("name, block, arguments", [WINDOWS, STATES], ids=["windows", "states"])
def test_the_router_knows_how_far_a_prompt_can_be_used(
    name, block, arguments, engine_log, tmp_path
):
    with contextlib.ExitStack() as stack:
        followed = Followed(stack, name, block, arguments, tmp_path / name, engine_log)
        rng = random.Random(11)
        texts = [rng.choices(range(200), k=700) for _ in range(4)]
        lengths = []
        for _ in range(40):
            prompt = rng.choice(texts)[: rng.choice([200, 400, 650])]
            # The engine computes at least one token.
            prompt = prompt + rng.choices(range(200), k=rng.choice([5, block + 5]))
            known = followed.held(prompt)
            assert cached(followed.ask(prompt)) == known
            lengths.append(known)
        # Nothing, something and much were held.
        assert 0 in lengths and len(set(lengths)) >= 4, lengths
        for what in ("event_junk", "skipped_blocks", "forgotten", "evicted_blocks"):
            assert followed.metric(f"engine_{what}_total") == 0, what
