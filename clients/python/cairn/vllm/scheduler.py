"""The scheduler's half: what is at the node, what to load, what to store. Nothing here waits while
the engine computes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cairn._engine.fetch_chooser import LEAST_STEP, Choice, Offer, Place, place_of
from cairn._engine.pool_store import PoolFound, PoolLookup
from cairn._engine.store import Lookup, Store
from cairn.types import Match, OpaqueLayout, Rect, TierKind, TierRun
from cairn.vllm.adapters import Adapter, AdapterFiles, Adapters, Naming
from cairn.vllm.metadata import LoadJob, Metadata, PoolLoadJob, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.request_keys import RequestKeys
from cairn.vllm.weighing import Probe, Weighing

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

__all__ = ["PROBE_BYTES", "Loading", "RequestState", "SchedulerHalf", "files_of"]

_LOG = logging.getLogger("cairn")
_FRESH = 1.0  # Seconds: older answers are asked for again, in the background.
_USABLE = 10.0  # Seconds: older answers count no more.
_IDLE = 0.005  # Seconds that a step without work waits for an answer.
PROBE_BYTES = 4 << 20  # Bytes of a probe, or one block if that has more.
_PROBE_BLOCKS = 16


@dataclass(slots=True)
class RequestState:
    """The state of one request. Blocks are counted from the prompt's first."""

    request: Request
    bypass: bool
    save_limit: int | None
    naming: Naming | None = None
    """Its LoRA adapter, until that is known."""
    adapter: Adapter | None = None
    keys: list[bytes] = field(default_factory=list)
    question: Lookup | PoolLookup | None = None
    answer: Match | PoolFound | None = None
    answered: float = -math.inf
    wait: float = 0.0
    """Seconds that it waits for the answer to `question`."""
    unasked: bool = False
    """The node was not asked what it has."""
    choice: Choice | None = None
    """The part of the last answer that was taken."""
    preemptions: int = 0
    first: int = 0
    saved: int = 0
    load_failed: bool = False


@dataclass(slots=True)
class Loading:
    """Blocks on their way into the engine, the prompt's `first` and those after it."""

    tiers: Sequence[TierRun]
    first: int
    blocks: list[int]


class SchedulerHalf:
    """Called by the engine's one scheduler thread."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        *,
        reads: bool,
        writes: bool,
        weighing: Weighing | None = None,
    ) -> None:
        """`weighing`: None: all that the node has is taken."""
        self._store = store
        self._plan = plan
        self._weighing = weighing
        self._reads = reads
        self._writes = writes
        self._requests: dict[str, RequestState] = {}
        self._loading: dict[str, Loading] = {}
        self._jobs: list[LoadJob | PoolLoadJob] = []
        self._request_keys = RequestKeys(store, plan)
        self._adapters = Adapters(plan.adapters, store.options.lookup_timeout)
        # Tokens of the prompt that no key is needed for: the last one is computed. As the proof of
        # what is before it, its block counts nevertheless.
        proven = plan.proof_blocks or any(pool.proof_blocks for pool in plan.pools)
        self._unasked = 0 if proven else 1

    # ---- before a request runs ----

    def on_new_request(self, request: Request) -> None:
        """Asks the node, so that the answer is there when the request's turn comes."""
        state = self._state(request)
        if self._reads and not request.skip_reading_prefix_cache and self._named(state):
            self._ask(state)

    def matched_tokens(self, request: Request, computed: int) -> int | None:
        """Tokens after the first `computed` ones that can be loaded; None: ask again in the next
        step.

        Gives the same answer no matter how often it is called.
        """
        state = self._state(request)
        if (
            not self._reads
            or state.bypass
            or state.load_failed
            or request.skip_reading_prefix_cache
        ):
            return 0
        if not self._named(state):
            return 0 if state.bypass else None
        if request.num_preemptions != state.preemptions:
            # It may find what it computed itself before.
            state.preemptions = request.num_preemptions
            state.answered = -math.inf
        if not self._answered(state):
            return None
        found = self._loadable(state, computed)
        if found and state.adapter is not None and not state.adapter.files.unchanged():
            # It may have waited for long, and the engine may have read other files since.
            self._refuse(state, "changed_adapter_requests")
            return 0
        return self._taken(state, computed, found) if found else 0

    def _taken(self, state: RequestState, computed: int, found: int) -> int:
        """Those of the `found` tokens after the first `computed` ones that are loaded faster than
        computed."""
        if self._weighing is None:
            return found
        state.choice = self._weighing.choose(
            computed,
            state.request.num_tokens,
            self._offers(state, computed, found),
            lambda: self._probe(state),
        )
        return state.choice.offer.tokens if state.choice is not None else 0

    def _offers(self, state: RequestState, computed: int, found: int) -> list[Offer]:
        """The lengths to which the answer can be taken: all, or less where slower places
        begin."""
        assert isinstance(state.answer, Match)
        size, first, blocks = self._plan.block_tokens, state.first, found // self._plan.block_tokens
        offers: list[Offer] = []
        end, place = 0, Place.MEMORY
        for run in state.answer.tiers:
            end = min(end + run.blocks, first + blocks)
            if end <= first:
                continue
            place = max(place, place_of([run.tier]))
            offer = Offer((end - first) * size, self._bytes(end - first), place)
            if offers and offers[-1].place == place:
                offers[-1] = offer
            else:
                offers.append(offer)
        # An answer should not have more than its runs.
        whole = Offer(found, self._bytes(blocks), place)
        return offers if offers and offers[-1].tokens == found else [*offers, whole]

    def _most(self, state: RequestState) -> Offer:
        """The most that the node can have for a request."""
        blocks = (state.request.num_tokens - 1) // self._plan.block_tokens
        return Offer(blocks * self._plan.block_tokens, self._bytes(blocks), Place.MEMORY)

    def _bytes(self, blocks: int) -> int:
        """On each rank."""
        layout = self._plan.spec.layout
        assert isinstance(layout, OpaqueLayout)
        return blocks * self._plan.ranks.columns * layout.max_part_bytes

    def _probe(self, state: RequestState) -> Probe | None:
        """A probe of the request's first blocks."""
        size = self._bytes(1) // self._plan.ranks.columns
        blocks = max(1, min(_PROBE_BLOCKS, PROBE_BYTES // size))
        keys = list(self._lookup_keys(state)[:blocks])
        return (lambda s: self._store.sample(keys, size, Rect(0, 1, 0, 1), s)) if keys else None

    def _loadable(self, state: RequestState, computed: int) -> int:
        """Tokens after the first `computed` ones that the answer has."""
        size = self._plan.block_tokens
        # The last token is always computed: its logits are wanted.
        most = (state.request.num_tokens - 1) // size
        found = state.answer.matched_blocks if isinstance(state.answer, Match) else 0
        state.first = computed // size
        return max(0, min(found - self._plan.proof_blocks, most) - state.first) * size

    def _answered(self, state: RequestState) -> bool:
        """True if `state.answer` is valid. Takes answers that came, and asks again when they are
        too old."""
        now = time.monotonic()
        question = state.question
        if question is not None:
            done, waited = question.done(), now - question.begin
            if done or waited > state.wait:
                # Too late is a miss.
                state.question, state.answered = None, now
                state.answer = question.result() if done else None
                if not done:
                    question.give_up()
                if self._weighing is not None and done:
                    self._weighing.answered(question.seconds)
                elif self._weighing is not None:
                    self._weighing.gave_up(waited)
        if state.question is None and now - state.answered > _FRESH:
            self._ask(state)
        return now - state.answered <= _USABLE

    def _ask(self, state: RequestState) -> None:
        keys = self._lookup_keys(state)
        state.unasked = bool(keys) and not self._asks(state)
        if not keys or state.unasked:
            state.answer, state.answered = None, time.monotonic()
            return
        state.question = self._begin_lookup(state, keys)

    def _asks(self, state: RequestState) -> bool:
        """Whether an answer can be worth waiting for."""
        if self._weighing is None:
            state.wait = self._store.options.lookup_timeout
            return True
        tokens = state.request.num_tokens
        state.wait = self._weighing.wait(tokens)
        first = state.answered == -math.inf
        return self._weighing.asks(
            tokens, self._most(state), lambda: self._probe(state), first=first
        )

    def _lookup_keys(self, state: RequestState) -> Sequence[bytes]:
        blocks = (state.request.num_tokens - self._unasked) // self._plan.block_tokens
        keys: Sequence[bytes] = state.request.block_hashes
        if not self._request_keys.are_the_engine_s(state.adapter) or len(keys) != blocks:
            return self._keys(state, blocks)
        # The engine's own list: a copy of a thousand keys costs a quarter of what a question does.
        return keys

    def _begin_lookup(self, state: RequestState, keys: Sequence[bytes]) -> Lookup | PoolLookup:
        return self._store.begin_lookup(keys)

    # ---- keys ----

    def _state(self, request: Request) -> RequestState:
        state = self._requests.get(request.request_id)
        if state is None:
            bypass = not self._plan.inputs.identified(request)
            if bypass:
                self._store.counters.add("bypassed_requests")
            limit = (
                None
                if self._store.options.save_generated
                else request.num_prompt_tokens // self._plan.block_tokens
            )
            state = self._requests[request.request_id] = RequestState(request, bypass, limit)
            if request.lora_request is not None and not bypass:
                state.naming = self._adapters.name(request.lora_request)
        return state

    def _named(self, state: RequestState) -> bool:
        """Whether the request has keys: now, or with `bypass` never."""
        naming = state.naming
        if naming is not None and not naming.pending():
            state.naming, state.adapter = None, naming.adapter
            if state.adapter is None:
                self._refuse(state, naming.refusal)
        return state.naming is None and not state.bypass

    def _refuse(self, state: RequestState, reason: str) -> None:
        """`reason`: the counter of an adapter that cannot be trusted."""
        state.bypass = True
        self._store.counters.add("bypassed_requests")
        self._store.counters.add(reason)

    def _keys(self, state: RequestState, blocks: int) -> list[bytes]:
        """Keys of the first `blocks` full blocks, or of fewer if the engine has hashed no more.

        The list is never changed later: a load on its way has it.
        """
        if len(state.keys) < blocks:
            state.keys = self._request_keys.extended(
                state.request, state.adapter, state.keys, blocks
            )
        # Copies of thousands of keys would be most of what a look-up costs the engine's thread.
        return state.keys if len(state.keys) <= blocks else state.keys[:blocks]

    # ---- while it runs ----

    def after_alloc(self, request: Request, blocks: KVCacheBlocks, tokens: int) -> None:
        """The engine has room for the tokens that `matched_tokens` promised, or wants none of them
        (0 tokens)."""
        state = self._state(request)
        answer = self._take_answer(state)
        assert isinstance(answer, (Match, type(None)))
        if answer is not None:
            state.saved = max(state.saved, answer.matched_blocks)
            self._count_shortened(state, answer.matched_blocks)
            self._count_left(state, answer, tokens)
        if tokens <= 0:
            return
        first, count = state.first, tokens // self._plan.block_tokens
        ids = list(blocks.get_block_ids()[0][first : first + count])
        keys = self._keys(state, first + count)
        limit = self._load_begins(request.request_id, state, len(ids))
        self._jobs.append(LoadJob(request.request_id, keys, first, ids, limit))
        self._loading[request.request_id] = Loading(answer.tiers if answer else (), first, ids)
        state.saved = max(state.saved, first + count)

    def _count_left(self, state: RequestState, answer: Match, tokens: int) -> None:
        """`tokens` of the answer are loaded."""
        if self._weighing is None:
            return
        most = (state.request.num_tokens - 1) // self._plan.block_tokens
        found = min(answer.matched_blocks - self._plan.proof_blocks, most) - state.first
        left = found - tokens // self._plan.block_tokens
        if left > 0 and not state.load_failed:
            self._weighing.left(left)

    def _load_begins(self, name: str, state: RequestState, blocks: int) -> float:
        """Returns the seconds after which the load is given up."""
        choice, state.choice = state.choice, None
        if self._weighing is None or choice is None:
            return math.inf
        self._weighing.load_begins(name, choice, blocks)
        return choice.limit

    def _count_shortened(self, state: RequestState, found: int) -> None:
        most = (state.request.num_tokens - 1) // self._plan.block_tokens
        if found > 0 and found - self._plan.proof_blocks < min(found, most):
            self._store.counters.add("draft_shortened_lookups")

    def _take_answer(self, state: RequestState) -> Match | PoolFound | None:
        """It is not used again."""
        answer, state.answer = state.answer, None
        state.answered, state.question = -math.inf, None
        return answer

    def hit_tiers(self, request: Request, tokens: int) -> dict[TierKind, int]:
        """How many of the `tokens` that are being loaded came from which tier. Blocks that the node
        gets from another place pass through its host tier."""
        load = self._loading.get(request.request_id)
        found: dict[TierKind, int] = {}
        if load is None:
            return found
        begin, end, position = load.first, load.first + tokens // self._plan.block_tokens, 0
        for run in load.tiers:
            blocks = max(0, min(end, position + run.blocks) - max(begin, position))
            if blocks:
                tier = TierKind.HOST if run.tier is None else run.tier
                found[tier] = found.get(tier, 0) + blocks * self._plan.block_tokens
            position += run.blocks
        return found

    def build_metadata(self, output: SchedulerOutput) -> Metadata:
        """Loads that `after_alloc` noted, and blocks that this step fills."""
        idle = output.total_num_scheduled_tokens == 0
        metadata = Metadata(self._store.namespace, self._jobs, idle=idle)
        self._jobs = []
        try:
            if self._weighing is not None:
                self._weighing.step_begins(_parts(output))
            if self._writes:
                self._save_all_filled(output, metadata)
            if idle and not self._loading:
                self._wait_for_answer()
        except Exception:
            # The loads must go out: the engine waits for them.
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: blocks of this step are not stored")
        return metadata

    def _wait_for_answer(self) -> None:
        """Waits a little, because otherwise the engine asks again and again and uses the core that
        the answer needs."""
        asked = [
            (state.question, state.wait)
            for state in self._requests.values()
            if state.question is not None
        ]
        if asked and not any(question.done() for question, _ in asked):
            question, wait = asked[0]  # It is answered first, mostly.
            left = question.begin + wait - time.monotonic()
            question.wait(max(0.0, min(_IDLE, left)))
            return
        named = [state.naming for state in self._requests.values() if state.naming is not None]
        if not asked and named:
            named[0].wait(_IDLE)

    def _save_all_filled(self, output: SchedulerOutput, metadata: Metadata) -> None:
        cached = output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        for name, scheduled in output.num_scheduled_tokens.items():
            state = self._requests.get(name)
            if state is not None and self._named(state):
                self._save_filled(state, name, computed[name] + scheduled, output, metadata)

    def _settled(self, state: RequestState, tokens: int, size: int, proof: int) -> int:
        """Blocks of `size` tokens whose KV does not change any more, after `tokens` tokens were
        computed.

        Drafted tokens are not among the request's, so their KV never counts. While tokens are
        drafted, layers whose blocks need a proof may write the last one again.
        """
        full = min(tokens, state.request.num_tokens) // size
        return full - proof if tokens > state.request.num_prompt_tokens else full

    def _full(self, state: RequestState, tokens: int, proof: int) -> int:
        """Blocks, or units, that may be stored after `tokens` tokens."""
        full = self._settled(state, tokens, self._plan.block_tokens, proof)
        return full if state.save_limit is None else min(full, state.save_limit)

    def _save_filled(
        self,
        state: RequestState,
        name: str,
        tokens: int,
        output: SchedulerOutput,
        metadata: Metadata,
    ) -> None:
        full = self._full(state, tokens, self._plan.proof_blocks)
        if full <= state.saved:
            return
        keys = self._keys(state, full)
        full = len(keys)
        groups = output.kv_connector_block_state.get_block_ids(name)
        first = state.saved
        if full > first and groups is not None:
            ids = groups[0]
            parent = keys[first - 1] if first else None
            metadata.saves.append(
                SaveJob(
                    keys[first:full],
                    first,
                    list(ids[first:full]),
                    parent,
                    adapter=files_of(state),
                    unasked=state.unasked,
                )
            )
            state.saved = full

    def on_step_end(self) -> None:
        """A step has ended, the first of those that `build_metadata` was told of."""
        if self._weighing is not None:
            self._weighing.step_ended()

    def on_output(self, output: KVConnectorOutput) -> None:
        """Loads that ended, and blocks that they did not bring."""
        invalid = output.invalid_block_ids or ()
        if self._weighing is not None:
            self._weighing.loads_told(output.kv_connector_worker_meta)
        for name in output.finished_recving or ():
            load = self._loading.pop(name, None)
            if self._weighing is not None:
                self._weighing.load_ended(name)
            if load is None:
                continue
            bad = [i for i, block in enumerate(load.blocks) if block in invalid]
            state = self._requests.get(name)
            if bad and state is not None:
                # Otherwise the same hit would be offered forever. Computed blocks are stored.
                state.load_failed = True
                state.saved = load.first + bad[0]

    def on_finished(self, request: Request) -> None:
        """Forgets it. A load under way is awaited by the engine, and `on_output` hears of it."""
        self._requests.pop(request.request_id, None)

    def reset(self) -> None:
        """After this nothing that was stored before is used: weights may have changed.

        Requests that are still running no longer use the cache. Other requests get keys that no
        other engine has: from now on KV is shared only within this process, until `weight_epoch`
        names the new weights.
        """
        self._request_keys.reset()
        for state in self._requests.values():
            state.bypass = True
            state.keys = []
        _LOG.warning(
            "cairn: the engine's cache was reset; nothing stored before is used "
            "by this process from now on"
        )

    def close(self) -> None:
        """Ends its threads."""
        self._adapters.close()
        if self._weighing is not None:
            self._weighing.close()


def _parts(output: SchedulerOutput) -> list[tuple[int, int]]:
    """For each request of a step the position of its first token in it, and how many it has. Empty:
    it says nothing of what a prompt costs, as most steps."""
    if max(output.num_scheduled_tokens.values(), default=0) < LEAST_STEP:
        return []
    cached = output.scheduled_cached_reqs
    begin = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    begin.update(zip(cached.req_ids, cached.num_computed_tokens))
    return [(begin[name], count) for name, count in output.num_scheduled_tokens.items()]


def files_of(state: RequestState) -> AdapterFiles | None:
    """The files of the request's LoRA adapter."""
    return state.adapter.files if state.adapter is not None else None
