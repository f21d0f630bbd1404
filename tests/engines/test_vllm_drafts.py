"""The connector in the real vLLM with models that draft tokens: a draft model as good as the
target, one whose KV is narrower, EAGLE heads, and a head of the target's own. Answers are those of
the target alone."""

import pytest

import draft_models
import layout_models
from conftest import ALONE, A, A_LONGER, BLOCK, ENGINE, Counts, Engine, numbers, same, stored

LAYER = 2 * BLOCK * 2 * 32 * 4  # A layer's block of `tiny`: K and V, tokens, heads, numbers.
# Method, the layers' bytes of a block, and blocks that are held back without a proof.
KINDS = {
    "copy": ("draft_model", 4 * LAYER, 0),
    "narrow": ("draft_model", 2 * LAYER + LAYER // 2, 0),
    "eagle": ("eagle", 3 * LAYER, 1),
    "eagle3": ("eagle3", 3 * LAYER, 1),
}


def speculative(kind, folder):
    return {"method": KINDS[kind][0], "model": str(folder), "num_speculative_tokens": 3}


def engine(tiny, log, kind, folder, node, **connector):
    return Engine(
        tiny,
        log,
        connector={"address": node.grpc, **connector},
        speculative_config=speculative(kind, folder),
        **ENGINE,
        **ALONE,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_cold_warm_and_in_a_new_process(tiny, engine_log, start_node, reference, tmp_path, kind):
    _, payload, held_back = KINDS[kind]
    folder = tiny
    if kind != "copy":
        folder = tmp_path / kind
        getattr(draft_models, kind)(folder)
    node, turns = start_node(), []
    with Counts(node) as counts:
        with engine(tiny, engine_log(), kind, folder, node) as first:
            for hits in (0, 30):
                before = counts.since()["fetched_bytes"]
                answers = first.ask(A)
                same(answers, reference(A))
                turns.append(answers[0]["turns"])
                assert counts.since()["fetched_bytes"] - before == hits * stored(payload)
                counts.wait_blocks(31)
        assert counts.blocks() == 31
        with engine(tiny, engine_log(), kind, folder, node) as second:
            answers = second.ask(A)
            same(answers, reference(A))
            turns.append(answers[0]["turns"])
            # The last block has the prompt's last token. It is computed, and is the proof too.
            assert answers[0]["cached"] == 960
            answers = second.ask(A_LONGER)
            same(answers, reference(A_LONGER))
            assert answers[0]["cached"] == 960 - held_back * BLOCK
    # As many drafted tokens are right with the draft's KV from the node as with its own.
    assert len(set(turns)) == 1
    if kind == "copy":
        assert turns[0] <= 3  # 8 tokens, 4 of them at a time.


@pytest.mark.parametrize(
    ("method", "hybrid", "restored"), [("eagle", True, 256), ("draft_model", False, 288)]
)
def test_next_to_windows(engine_log, start_node, tmp_path, method, hybrid, restored):
    """A target of several KV cache groups, among which vLLM finds a place for the head's layer. It
    marks no group, so each of them needs a block more. A draft model is refused then: vLLM without
    the connector gives other log-probabilities with it. It may be next to windows in one group."""
    model, folder = tmp_path / "gemma3", tmp_path / "draft"
    layout_models.make("gemma3").save_pretrained(model)
    {"draft_model": draft_models.wide, "eagle": draft_models.eagle}[method](folder)
    node, prompt = start_node(), numbers(1, 300)
    with Engine(model, engine_log(), **ENGINE, **ALONE) as alone:
        expected = alone.ask(prompt)
    for cached in (0, restored):
        with Engine(
            model,
            engine_log(),
            connector={"address": node.grpc, "revision": "seed 20", "lookup_timeout": 5.0},
            speculative_config={
                "method": method,
                "model": str(folder),
                "num_speculative_tokens": 3,
            },
            disable_hybrid_kv_cache_manager=not hybrid,
            **ENGINE,
            **ALONE,
        ) as engine:
            answers = engine.ask(prompt)
            same(answers, expected)
            assert answers[0]["cached"] == cached


def test_the_model_s_own_head(engine_log, start_node, tmp_path):
    """Multi-token prediction. Its layer's KV is a third one next to those of the model's two."""
    folder, node = tmp_path / "mtp", start_node()
    draft_models.mtp(folder)
    with Engine(folder, engine_log(), **ENGINE, **ALONE) as alone:
        expected = alone.ask(A)
        longer = alone.ask(A_LONGER)

    def start():
        return Engine(
            folder,
            engine_log(),
            connector={"address": node.grpc},
            speculative_config={"method": "mtp", "num_speculative_tokens": 1},
            **ENGINE,
            **ALONE,
        )

    turns = []
    with Counts(node) as counts:
        with start() as first:
            for hits in (0, 30):
                before = counts.since()["fetched_bytes"]
                answers = first.ask(A)
                same(answers, expected)
                turns.append(answers[0]["turns"])
                fetched = counts.since()["fetched_bytes"] - before
                assert fetched == hits * stored(3 * LAYER)
                counts.wait_blocks(31)
        with start() as second:
            answers = second.ask(A)
            same(answers, expected)
            turns.append(answers[0]["turns"])
            assert answers[0]["cached"] == 960
            answers = second.ask(A_LONGER)
            same(answers, longer)
            assert answers[0]["cached"] == 960 - BLOCK
    assert len(set(turns)) == 1


def test_tokens_that_were_drafted_in_vain_and_a_draft_that_is_replaced(
    tiny, engine_log, start_node, tmp_path
):
    """With generated tokens stored. A draft of other weights finds nothing."""
    folder, node = tmp_path / "draft", start_node()
    draft_models.narrow(folder)
    with Counts(node) as counts:
        with engine(tiny, engine_log(), "narrow", folder, node, save_generated=True) as first:
            [cold] = first.ask(A, tokens=200)
            # Hardly any drafted token is right.
            assert cold["turns"] > 150
            counts.wait_blocks((992 + 199) // BLOCK)
            # 1,172 tokens: 36 blocks, 5 of them generated.
            longer = A + cold["ids"][:180]
            [warm] = first.ask(longer, tokens=20)
            assert warm["ids"] == cold["ids"][180:]
            assert warm["cached"] == 36 * BLOCK
        draft_models.narrow(folder, seed=4)
        with engine(tiny, engine_log(), "narrow", folder, node, save_generated=True) as second:
            [other] = second.ask(longer, tokens=20)
    assert other["cached"] == 0
    assert other["ids"] == cold["ids"][180:]
