"""What decides whether a prompt is loaded or computed: the models of costs, and what follows from
them, on a clock of the test."""

import random

import pytest

from cairn._engine.cost_model import LinearFit, PrefillModel
from cairn._engine.fetch_chooser import FetchChooser, Offer, Place, place_of
from cairn.types import TierKind

BLOCK = 16  # Tokens.
BYTES = 1 << 20  # Of a block.
TOKENS = 1024
WHOLE = Offer(TOKENS - BLOCK, (TOKENS // BLOCK - 1) * BYTES, Place.MEMORY)


def compute_seconds(parts, base=0.004, token=1e-3, pair=5e-7):
    """What an engine would take: attention makes late tokens cost more."""
    return base + sum(count * (token + pair * (begin + count / 2)) for begin, count in parts)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def chooser(clock):
    """Knows what computing costs."""
    made = FetchChooser(clock)
    for begin, count in ((0, 512), (512, 512), (0, 100), (0, 300)) * 3:
        made.observe_step([(begin, count)], compute_seconds([(begin, count)]), alone=True)
    return made


def load(chooser, seconds, offer=WHOLE, came=1.0, given_up=False):
    chooser.observe_load(offer, came, seconds, given_up=given_up)


def takes(chooser, offer=WHOLE, computed=0, tokens=TOKENS):
    choice = chooser.choose(computed, tokens, [offer])
    return 0 if choice is None else choice.offer.tokens


def saved():
    """What the engine would take for the offer, in two steps."""
    return compute_seconds([(0, 512)]) + compute_seconds([(512, 512)])


# ---- computing ----


def test_steps_say_what_prompts_of_any_length_cost():
    model = PrefillModel()
    assert not model.known and model.range_seconds(0, 100) == 0
    draw = random.Random(1)
    for _ in range(60):
        parts = [
            (draw.randrange(4096), draw.randrange(32, 512)) for _ in range(draw.randrange(1, 4))
        ]
        # A machine is never quite as fast as before.
        model.observe(parts, compute_seconds(parts) * draw.uniform(0.9, 1.1))
    for parts in ([(0, 500)], [(4000, 300)], [(0, 64), (2000, 64)]):
        assert model.step_seconds(parts) == pytest.approx(compute_seconds(parts), rel=0.15)
    # Twice the prompt costs more than twice as much.
    assert model.range_seconds(0, 8192) > 2.2 * model.range_seconds(0, 4096)


def test_one_step_is_a_speed_and_no_weight_is_negative():
    model = PrefillModel()
    model.observe([(0, 256)], 0.1)
    assert model.seconds(0, 256) == pytest.approx(0.1, rel=0.01)
    assert model.range_seconds(0, 512) == pytest.approx(0.2, rel=0.05)
    # Large steps that seem to be faster than small ones do not make tokens cost less than nothing.
    for _ in range(20):
        model.observe([(0, 64)], 0.1)
        model.observe([(0, 512)], 0.05)
    costs = [model.seconds(0, tokens) for tokens in range(16, 1024, 16)]
    assert costs == sorted(costs) and costs[0] > 0


def test_a_hiccup_counts_little_and_a_slower_engine_is_noticed():
    model = PrefillModel()
    model.observe([(0, 512)], 30.0)  # The first step compiles.
    for _ in range(10):
        model.observe([(0, 512)], 0.1)
    model.observe([(0, 512)], 5.0)
    assert model.seconds(0, 512) == pytest.approx(0.1, rel=0.1)
    for _ in range(100):
        model.observe([(0, 512)], 0.3)
    assert model.seconds(0, 512) == pytest.approx(0.3, rel=0.2)


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [([], 1.0), ([(0, 0)], 1.0), ([(0, 64)], 0.0), ([(0, 64)], float("nan")), ([(0, 64)], -1.0)],
)
def test_steps_that_say_nothing(parts, seconds):
    model = PrefillModel()
    model.observe(parts, seconds)
    assert not model.known and model.seconds(0, 64) == 0


def test_a_prompt_costs_as_much_as_its_steps():
    model = PrefillModel()
    assert model.range_seconds(0, 100) == 0
    for begin in range(0, 4096, 300):
        model.observe([(begin, 300)], compute_seconds([(begin, 300)]))
    for begin, end in ((0, 100), (0, 300), (17, 1000), (500, 4001), (10, 10), (10, 5)):
        steps = [(at, min(300, end - at)) for at in range(begin, end, 300)]
        assert model.range_seconds(begin, end) == pytest.approx(
            sum(model.seconds(*step) for step in steps)
        )


# ---- loading ----


def test_a_line_through_loads_of_several_sizes():
    fit = LinearFit(8)
    assert not fit.known and fit.at(5) == 0
    for size in (1, 8, 3, 20, 5, 13) * 3:
        fit.add(size, 0.01 + 0.002 * size)
    assert fit.at(0) == pytest.approx(0.01, rel=0.01)
    assert fit.at(30) == pytest.approx(0.07, rel=0.01)


def test_loads_of_one_size_say_that_larger_ones_take_longer():
    fit = LinearFit(8)
    for _ in range(5):
        fit.add(10, 0.1)
    assert fit.at(10) == pytest.approx(0.1)
    assert fit.at(20) == pytest.approx(0.2)


def test_one_outlier_is_not_believed_and_two_are():
    fit = LinearFit(8)
    for _ in range(20):
        fit.add(10, 0.1)
    fit.add(10, 5.0)
    assert fit.at(10) < 0.2
    for _ in range(3):
        fit.add(10, 0.1)
    fit.add(10, 1.0)
    fit.add(10, 1.1)
    assert fit.at(10) == pytest.approx(1.05, rel=0.05)
    # And back.
    fit.add(10, 0.1)
    fit.add(10, 0.1)
    assert fit.at(10) == pytest.approx(0.1, rel=0.01)


def test_an_outlier_of_a_moment_is_none():
    fit = LinearFit(8)
    for _ in range(5):
        fit.add(0, 1e-4)
    fit.add(0, 1.5e-3)
    fit.add(0, 1.5e-3)
    assert fit.at(0) < 1e-3


# ---- the choice ----


def test_what_is_not_known_is_taken_as_it_always_was(clock):
    chooser = FetchChooser(clock)
    assert takes(chooser) == WHOLE.tokens
    assert chooser.choose(0, TOKENS, [WHOLE]).limit == float("inf")
    assert chooser.wait(TOKENS) == float("inf")
    load(chooser, 0.04)
    assert takes(chooser) == WHOLE.tokens
    assert chooser.is_worth_asking(TOKENS, WHOLE) and chooser.answers_in_time(TOKENS)


def test_a_short_prompt_is_computed_to_learn_what_that_costs_if_the_store_seems_slow(clock):
    chooser = FetchChooser(clock)
    load(chooser, 1e4)
    assert takes(chooser) == 0
    # Nobody knows how long this one takes.
    assert takes(chooser, tokens=100_000) == WHOLE.tokens
    chooser.observe_step([(0, 512)], 1e5, alone=True)
    assert takes(chooser) == WHOLE.tokens


def test_no_prompt_is_computed_to_learn_what_nobody_will_tell(clock):
    chooser = FetchChooser(clock)
    load(chooser, 1e4)
    chooser.steps_are_unknown()
    assert takes(chooser) == WHOLE.tokens


def test_the_first_load_takes_as_long_as_computing_at_most(chooser):
    choice = chooser.choose(0, TOKENS, [WHOLE])
    assert choice.offer == WHOLE
    assert choice.limit == pytest.approx(saved(), rel=0.1)


def test_a_load_is_given_up_early_if_it_should_be_fast(chooser):
    for _ in range(5):
        load(chooser, saved() / 50)
    assert chooser.choose(0, TOKENS, [WHOLE]).limit == pytest.approx(saved() / 4, rel=0.1)
    for _ in range(10):
        load(chooser, saved() / 8)
    assert chooser.choose(0, TOKENS, [WHOLE]).limit == pytest.approx(saved() / 2, rel=0.15)


def test_short_prompts_leave_a_load_the_time_of_a_hiccup(chooser):
    few = Offer(BLOCK, BYTES, Place.MEMORY)
    assert chooser.choose(0, 40, [few]).limit == 0.05


def test_a_store_that_is_slower_than_computing_is_noticed_after_two_loads(chooser):
    for _ in range(10):
        load(chooser, saved() / 5)
        assert takes(chooser) == WHOLE.tokens
    # To a tenth. Loads are given up, and what came of them says how long they would take.
    for slow in range(1, 10):
        limit = chooser.choose(0, TOKENS, [WHOLE]).limit
        load(chooser, limit, came=limit / (2 * saved()), given_up=True)
        if not takes(chooser):
            break
    assert slow == 2
    assert not chooser.is_worth_asking(TOKENS, WHOLE)


def test_a_store_that_gives_nothing_at_all_is_noticed(chooser):
    for _ in range(10):
        load(chooser, saved() / 50)
    for slow in range(1, 10):
        limit = chooser.choose(0, TOKENS, [WHOLE]).limit
        load(chooser, limit, came=0.0, given_up=True)
        if not takes(chooser):
            break
    assert slow <= 5


def test_loads_that_stall_and_bring_nothing_are_not_tried_forever(chooser):
    """They end before they would be given up: the client waits no longer for a piece."""
    for _ in range(10):
        load(chooser, saved() / 50)
    for slow in range(1, 20):
        load(chooser, saved() / 10, came=0.0)
        if not takes(chooser):
            break
    assert slow <= 6


def test_the_first_load_of_all_stalls(chooser):
    load(chooser, 1.0, came=0.0)
    assert takes(chooser) == 0


def test_blocks_that_are_lost_are_no_slow_store(chooser):
    for _ in range(5):
        load(chooser, saved() / 5)
    for _ in range(5):
        load(chooser, 1e-4, came=0.0)
    assert takes(chooser) == WHOLE.tokens
    choice = chooser.choose(0, TOKENS, [WHOLE])
    assert choice.limit == pytest.approx(saved() * 4 / 5, rel=0.1)


def test_loads_with_noise_are_taken_all_the_time(chooser):
    draw = random.Random(3)
    for _ in range(500):
        factor = draw.choice([0.5, 1, 1, 1, 2, 3])
        load(chooser, saved() / 10 * factor)
        assert takes(chooser) == WHOLE.tokens


def test_a_hit_that_is_no_faster_than_computing_is_left(chooser):
    for _ in range(10):
        load(chooser, saved() * 0.99)
    assert takes(chooser) == 0
    assert chooser.choose(0, TOKENS, []) is None


def test_the_engine_s_own_blocks_count(chooser):
    for _ in range(10):
        load(chooser, saved() / 2)
    assert takes(chooser) == WHOLE.tokens
    # The same blocks for the few tokens that the engine lacks: nothing is saved.
    assert takes(chooser, WHOLE._replace(tokens=BLOCK), computed=TOKENS - 2 * BLOCK) == 0


def test_of_several_lengths_the_best_is_taken(chooser):
    half = Offer(TOKENS // 2, TOKENS // 2 // BLOCK * BYTES, Place.MEMORY)
    whole = WHOLE._replace(place=Place.DISK)
    for _ in range(5):
        load(chooser, saved() / 20, half)
        load(chooser, saved() * 3, whole)
    assert chooser.choose(0, TOKENS, [half, whole]).offer == half
    # Disks of another speed.
    for _ in range(5):
        load(chooser, saved() / 10, whole)
    assert chooser.choose(0, TOKENS, [half, whole]).offer == whole


def test_places_have_costs_of_their_own(chooser):
    for _ in range(5):
        load(chooser, saved() / 20)
        load(chooser, saved() * 3, WHOLE._replace(place=Place.DISK))
    assert takes(chooser) == WHOLE.tokens
    assert takes(chooser, WHOLE._replace(place=Place.DISK)) == 0
    # Never seen: taken.
    assert takes(chooser, WHOLE._replace(place=Place.ELSEWHERE)) == WHOLE.tokens
    assert place_of([TierKind.HOST, TierKind.DEVICE]) == Place.MEMORY
    assert place_of([TierKind.DISK, TierKind.HOST]) == Place.DISK
    assert place_of([TierKind.HOST, None, TierKind.DISK]) == Place.ELSEWHERE
    assert place_of([]) == Place.MEMORY


def test_steps_next_to_a_load_only_show_what_computing_takes_at_most(chooser):
    before = chooser.choose(0, TOKENS, [WHOLE]).limit
    for _ in range(20):
        chooser.observe_step([(0, 512)], 10.0, alone=False)
    assert chooser.choose(0, TOKENS, [WHOLE]).limit == pytest.approx(before)
    for _ in range(200):
        chooser.observe_step([(0, 512)], 0.1, alone=False)
    assert chooser.choose(0, TOKENS, [WHOLE]).limit < before / 2


def test_steps_of_decodes_say_nothing(clock):
    chooser = FetchChooser(clock)
    chooser.observe_step([(500, 1)] * 8, 0.01, alone=True)
    assert chooser.wait(TOKENS) == float("inf")


# ---- look-ups ----


def test_a_request_waits_for_an_answer_for_a_share_of_what_its_prompt_costs(chooser):
    assert chooser.wait(TOKENS) == pytest.approx(0.05 * saved(), rel=0.1)
    assert chooser.wait(8) == 0.002
    for _ in range(5):
        chooser.observe_lookup(0.001)
    assert chooser.answers_in_time(TOKENS) and chooser.answers_in_time(8)
    for _ in range(5):
        chooser.observe_lookup(0.004)
    assert chooser.answers_in_time(TOKENS) and not chooser.answers_in_time(8)
    for _ in range(5):
        chooser.observe_lookup(0.1)
    assert not chooser.answers_in_time(TOKENS)


def test_a_load_takes_at_least_as_long_as_a_look_up(chooser):
    few = Offer(BLOCK, BYTES, Place.MEMORY)
    for _ in range(5):
        load(chooser, saved() / 5)
        chooser.observe_lookup(0.05)
    assert takes(chooser) == WHOLE.tokens
    assert takes(chooser, few, computed=TOKENS - 40) == 0


# ---- probes ----


def probes_until(chooser, clock, seconds, condition, lookup=0.001):
    """Probes that are due come with these seconds. Returns how many there were, and how long it
    took, in steps of a tenth of a second."""
    count, begin = 0, clock.now
    while not condition():
        assert clock.now < begin + 1000
        if chooser.probe_is_due():
            count += 1
            chooser.observe_probe(Offer(0, 4 * BYTES, Place.MEMORY), lookup, seconds)
        clock.now += 0.1
    return count, clock.now - begin


def test_a_store_that_recovers_is_noticed_by_small_probes(chooser, clock):
    slow = 2 * saved()
    for _ in range(5):
        load(chooser, slow)
    assert takes(chooser) == 0
    # It stays slow, and fewer and fewer probes ask.
    share = 4 * BYTES / WHOLE.bytes
    count, _ = probes_until(
        chooser, clock, slow * share, lambda: clock.now > 400 or takes(chooser) > 0
    )
    assert takes(chooser) == 0
    assert 10 <= count <= 20
    # As fast as before: two probes in a row, or three if the first is not believed.
    count, seconds = probes_until(chooser, clock, slow * share / 20, lambda: takes(chooser) > 0)
    assert count <= 4
    assert seconds < 35


def test_slow_answers_that_recover_are_noticed_by_probes(chooser, clock):
    for _ in range(5):
        chooser.observe_lookup(1.0)
    assert not chooser.answers_in_time(TOKENS)
    for _ in range(6):
        clock.now += 31
        assert chooser.probe_is_due()
        chooser.observe_probe(Offer(0, 0, Place.MEMORY), 0.001, None)
    assert chooser.answers_in_time(TOKENS)


def test_answers_that_vary_by_milliseconds_cause_no_probes(chooser, clock):
    for _ in range(5):
        load(chooser, 2 * saved())
    draw, count, end = random.Random(7), 0, clock.now + 300
    while clock.now < end:
        if chooser.probe_is_due():
            count += 1
            lookup = draw.choice([0.002, 0.006, 0.02])
            chooser.observe_probe(Offer(0, 0, Place.MEMORY), lookup, None)
        clock.now += 0.1
    assert count <= 16


def test_while_hits_are_taken_no_probe_is_due(chooser, clock):
    for _ in range(5):
        load(chooser, saved() / 5)
    for _ in range(100):
        assert takes(chooser) == WHOLE.tokens
        clock.now += 0.5
        assert not chooser.probe_is_due()
    clock.now += 1
    assert chooser.probe_is_due() and not chooser.probe_is_due()
