"""The scheduler's half for models with several KV cache groups, each of which is a pool of the
layout.

    node    after how many tokens does every pool have what its layers need?      one number
    engine  may be told a multiple of all block sizes, less than the whole prompt
    store   full attention: every block. Windows: what a prompt needs that goes on at a boundary.
            States: the checkpoints at boundaries, when the engine hands them over

Boundaries are the ends of prompts, the places where prompts part, and each `window_interval`. If
layers keep states, only places with a checkpoint are boundaries: the first of them after each
`state_interval` is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cairn._engine.fetch_chooser import Offer, Place, place_of
from cairn._engine.pool_store import PoolFound, PoolLookup, PoolQuestion, PoolStore
from cairn._engine.store import Store
from cairn.keys import pool_keys
from cairn.types import Rect, TierKind
from cairn.vllm.metadata import NO_BLOCK, Metadata, PoolBlocks, PoolLoadJob, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.options import ConnectorOptions
from cairn.vllm.pools import step_of
from cairn.vllm.scheduler import PROBE_BYTES, Loading, RequestState, SchedulerHalf, files_of
from cairn.vllm.states import Checkpoint, checkpoints
from cairn.vllm.weighing import Probe, Weighing

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

__all__ = ["PooledSchedulerHalf"]

_MOST_KEYS = 65536  # In one question to a node.
_MOST_BLOCKS = 4 * _MOST_KEYS  # Over all pools.
_OFFERS = 2  # Loads that a request may be offered: after one that failed, a shorter one.


@dataclass(slots=True)
class _Progress:
    """The state of one request in its pools."""

    saved: list[int]
    """By pool: blocks that are stored or need not be."""
    boundaries: set[int] = field(default_factory=set)
    """Tokens after which another prompt may go on."""
    checkpoint: int = 0
    """States after this many tokens are stored or need not be, and those before."""
    most: float = math.inf
    """Tokens that may still be offered."""
    offers: int = _OFFERS
    offered: int = 0
    """The length of the load that is under way."""


class PooledSchedulerHalf(SchedulerHalf):
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
        """As of `SchedulerHalf`."""
        super().__init__(store, plan, reads=reads, writes=writes, weighing=weighing)
        assert isinstance(store, PoolStore) and isinstance(store.options, ConnectorOptions)
        self._pool_store = store
        self._step = step_of(plan.pools)
        # A boundary that is no multiple of the step would never be offered.
        self._interval = self._floor(store.options.window_interval)
        if 0 < store.options.window_interval < self._step:
            self._interval = self._step
        self._states = {number for number, pool in enumerate(plan.pools) if pool.states}
        self._by_position = [
            (number, pool) for number, pool in enumerate(plan.pools) if not pool.states
        ]
        self._state_interval = store.options.state_interval
        if self._states:
            self._interval = 0  # Windows are of no use where there are no states.
        self._needs = [pool.proven_need(number) for number, pool in enumerate(plan.pools)]
        blocks_of_step = sum(self._step // pool.block_tokens for pool in plan.pools)
        units_of_step = self._step // plan.block_tokens
        self._most_keys = min(_MOST_KEYS, _MOST_BLOCKS // blocks_of_step * units_of_step)
        self._progress: dict[str, _Progress] = {}

    def _floor(self, tokens: int) -> int:
        return tokens // self._step * self._step

    def _provable(self, tokens: int) -> int:
        """The longest length that a prompt which begins with these tokens alone can prove."""
        return self._floor(
            max(
                0,
                min(
                    tokens // pool.block_tokens * pool.block_tokens - pool.proof_tokens
                    for pool in self._plan.pools
                ),
            )
        )

    def _of(self, request: Request) -> _Progress:
        progress = self._progress.get(request.request_id)
        if progress is None:
            # The same prompt again needs its last token computed. A longer one does not.
            end = request.num_prompt_tokens
            ends = {min(self._provable(end), self._floor(end - n)) for n in (0, 1)}
            progress = _Progress([0] * len(self._plan.pools), ends)
            self._progress[request.request_id] = progress
        return progress

    # ---- before a request runs ----

    def _begin_lookup(self, state: RequestState, keys: Sequence[bytes]) -> PoolLookup:
        return self._pool_store.begin_pool_lookup(self._question(state, keys))

    def _question(self, state: RequestState, keys: Sequence[bytes]) -> PoolQuestion:
        # The last token is always computed, so no key covers it. If a prompt is too long for one
        # question, its beginning may be found.
        keys = keys[: self._most_keys]
        most = min(
            len(keys) * self._plan.block_tokens,
            state.request.num_tokens - 1,
            self._of(state.request).most,
        )
        return PoolQuestion(keys, self._needs, self._step, self._floor(int(most)))

    def _offers(self, state: RequestState, computed: int, found: int) -> list[Offer]:
        # The node is asked for the longest length alone. Since late tokens cost more to compute
        # than early ones, a shorter one would be taken only if a place of it were faster.
        assert isinstance(state.answer, PoolFound)
        place = place_of(run.tier for run in state.answer.tiers if run.blocks)
        return [Offer(found, self._bytes_between(computed, computed + found), place)]

    def _most(self, state: RequestState) -> Offer:
        tokens = self._floor(state.request.num_tokens - 1)
        return Offer(tokens, self._bytes_between(0, tokens), Place.MEMORY)

    def _bytes_between(self, computed: int, tokens: int) -> int:
        """That are loaded to go on after `tokens` tokens, if the engine has the first `computed`
        ones."""
        total = 0
        for pool in self._plan.pools:
            needed = pool.needed(tokens)
            first = max(needed.start, computed // pool.block_tokens)
            total += max(0, needed.stop - pool.proof_blocks - first) * pool.part_bytes
        return total * self._plan.ranks.columns

    def _probe(self, state: RequestState) -> Probe | None:
        question = self._question(state, list(self._lookup_keys(state)))
        if question.most <= 0:
            return None
        sizes = [pool.part_bytes for pool in self._plan.pools]
        rects = [Rect(number, number + 1, 0, 1) for number in range(len(sizes))]
        return lambda s: self._pool_store.sample_pools(question, sizes, rects, PROBE_BYTES, s)

    def _loadable(self, state: RequestState, computed: int) -> int:
        state.first = computed // self._plan.block_tokens
        found = state.answer.tokens if isinstance(state.answer, PoolFound) else 0
        if computed % self._step:
            return 0  # A load would write into a block that has the last of these tokens.
        # It may not be restorable to shorter lengths.
        return found - computed if computed < found < state.request.num_tokens else 0

    def after_alloc(self, request: Request, blocks: KVCacheBlocks, tokens: int) -> None:
        """The engine has room for the tokens that `matched_tokens` promised, or wants none of them
        (0 tokens)."""
        state, progress = self._state(request), self._of(request)
        answer = self._take_answer(state)
        if isinstance(answer, PoolFound):
            self._know(progress, answer)
            left = answer.tokens - state.first * self._plan.block_tokens - tokens
            if self._weighing is not None and tokens == 0 and left > 0:
                self._weighing.left(left // self._plan.block_tokens)
        self._add_boundary(progress, request.shared_prefix_boundary)
        if tokens <= 0:
            return
        begin = state.first * self._plan.block_tokens
        end = begin + tokens
        pools = []
        for number, (pool, ids) in enumerate(zip(self._plan.pools, blocks.get_block_ids())):
            first, last = begin // pool.block_tokens, end // pool.block_tokens
            while first < last and ids[first] == NO_BLOCK:
                first += 1
            pools.append(PoolBlocks(number, first, list(ids[first:last])))
        keys = self._keys(state, end // self._plan.block_tokens)
        count = sum(len(pool.blocks) for pool in pools)
        limit = self._load_begins(request.request_id, state, count)
        self._jobs.append(PoolLoadJob(request.request_id, keys, end, pools, limit))
        progress.offered = end
        self._loading[request.request_id] = Loading(answer.tiers if answer else (), 0, [])

    def _know(self, progress: _Progress, answer: PoolFound) -> None:
        """Blocks that the node has are not stored again. Where they end, another prompt parts from
        this one."""
        for number, pool in enumerate(self._plan.pools):
            there = answer.shared_tokens if pool.chained else answer.tokens
            progress.saved[number] = max(progress.saved[number], there // pool.block_tokens)
        progress.checkpoint = max(progress.checkpoint, answer.tokens)
        self._add_boundary(progress, answer.shared_tokens)
        limiting = answer.limiting_pool
        if answer.shared_tokens > 0 and limiting is not None:
            if self._plan.pools[limiting].proof_blocks:
                self._store.counters.add("draft_shortened_lookups")

    def _add_boundary(self, progress: _Progress, tokens: int) -> None:
        """Another prompt begins with these tokens and goes on with others."""
        progress.boundaries.update((self._floor(tokens), self._provable(tokens)))

    def hit_tiers(self, request: Request, tokens: int) -> dict[TierKind, int]:
        """All tokens count for the slowest tier that has a block of theirs: a prompt waits for
        that one."""
        load = self._loading.get(request.request_id)
        if load is None:
            return {}
        tiers = {run.tier for run in load.tiers if run.blocks}
        return {TierKind.DISK if TierKind.DISK in tiers else TierKind.HOST: tokens}

    # ---- while it runs ----

    def _save_filled(
        self,
        state: RequestState,
        name: str,
        tokens: int,
        output: SchedulerOutput,
        metadata: Metadata,
    ) -> None:
        unit = self._plan.block_tokens
        full = self._full(state, tokens, 0)
        progress = self._of(state.request)
        made = self._save_states(state, progress, name, full, output, metadata)
        if not made and all(
            full * unit < (progress.saved[number] + 1) * pool.block_tokens
            for number, pool in self._by_position
        ):
            return
        groups = output.kv_connector_block_state.get_block_ids(name)
        if groups is None:
            return
        keys = self._keys(state, full)
        for number, pool in self._by_position:
            if not pool.chained:
                # The windows before new checkpoints may begin in blocks that were passed over.
                firsts = [pool.needed(length).start for length in made]
                progress.saved[number] = min([progress.saved[number], *firsts])
            settled = self._settled(state, tokens, pool.block_tokens, pool.proof_blocks)
            self._save_pool(state, progress, number, groups[number], keys, settled, metadata)

    def _save_states(
        self,
        state: RequestState,
        progress: _Progress,
        name: str,
        full: int,
        output: SchedulerOutput,
        metadata: Metadata,
    ) -> list[int]:
        """The lengths of the checkpoints that are stored after this step. Those of requests that do
        not run in it have just been loaded."""
        if not self._states:
            return []
        unit = self._plan.block_tokens
        offers = output.kv_connector_block_state.boundary_state_offloads.get(name, ())
        made = []
        for checkpoint in checkpoints(offers, self._states, self._step):
            end = checkpoint.tokens // unit
            if end > full or not self._wants(state, progress, checkpoint):
                continue
            keys = self._keys(state, end)
            if len(keys) < end:
                continue
            for number, block in checkpoint.blocks.items():
                size = self._plan.pools[number].block_tokens
                own = pool_keys(keys[end - size // unit :], size // unit, number)
                metadata.saves.append(
                    SaveJob(
                        own,
                        checkpoint.tokens // size - 1,
                        [block],
                        None,
                        number,
                        files_of(state),
                        state.unasked,
                    )
                )
            progress.checkpoint = checkpoint.tokens
            progress.boundaries.add(checkpoint.tokens)
            made.append(checkpoint.tokens)
        return made

    def _wants(self, state: RequestState, progress: _Progress, checkpoint: Checkpoint) -> bool:
        """Whether a prompt may go on there."""
        tokens, last, interval = checkpoint.tokens, progress.checkpoint, self._state_interval
        if tokens <= last:
            return False
        return (
            tokens in progress.boundaries
            # Where the answer ends is not known yet.
            or tokens > state.request.num_prompt_tokens
            or (interval > 0 and tokens // interval > last // interval)
        )

    def _save_pool(
        self,
        state: RequestState,
        progress: _Progress,
        number: int,
        ids: Sequence[int],
        keys: Sequence[bytes],
        settled: int,
        metadata: Metadata,
    ) -> None:
        pool, unit = self._plan.pools[number], self._plan.block_tokens
        units = pool.block_tokens // unit
        first, last = progress.saved[number], min(settled, len(keys) // units)
        if first >= last:
            return
        progress.saved[number] = last
        own = pool_keys(keys[first * units : last * units], units, number)
        parent = None
        if pool.chained and first:
            [parent] = pool_keys(keys[(first - 1) * units : first * units], units, number)
        wanted = self._wanted(state, progress, number, range(first, last))
        for begin, end in _runs(block for block in wanted if ids[block] != NO_BLOCK):
            metadata.saves.append(
                SaveJob(
                    own[begin - first : end - first],
                    begin,
                    ids[begin:end],
                    parent,
                    number,
                    files_of(state),
                    state.unasked,
                )
            )

    def _wanted(
        self, state: RequestState, progress: _Progress, number: int, blocks: range
    ) -> Sequence[int]:
        """Those of `blocks` that a prompt needs which goes on at one of the boundaries."""
        pool = self._plan.pools[number]
        if pool.chained:
            return blocks
        size, boundaries = pool.block_tokens, set(progress.boundaries)
        if self._interval > 0:
            first = max(1, (blocks.start * size - pool.proof_tokens) // self._interval + 1)
            last = (blocks.stop * size + pool.tail) // self._interval
            boundaries.update(n * self._interval for n in range(first, last + 1))
        # Where the answer ends is not known yet, so all of it is needed.
        found = set(range(max(blocks.start, state.request.num_prompt_tokens // size), blocks.stop))
        for tokens in boundaries:
            needed = pool.needed(tokens)
            found.update(range(max(blocks.start, needed.start), min(blocks.stop, needed.stop)))
        return sorted(found)

    def on_output(self, output: KVConnectorOutput) -> None:
        """Loads that ended, and those that did not bring everything."""
        failed = output.failed_recving or ()
        if self._weighing is not None:
            self._weighing.loads_told(output.kv_connector_worker_meta)
        for name in output.finished_recving or ():
            load = self._loading.pop(name, None)
            given_up = self._weighing is not None and self._weighing.load_ended(name)
            state, progress = self._requests.get(name), self._progress.get(name)
            if load is None or name not in failed or state is None or progress is None:
                continue
            # The engine begins from the start. The node may have a shorter length, now that it
            # knows which block is lost; the same one would be offered forever.
            progress.offers -= 1
            progress.most = progress.offered - 1
            state.load_failed = given_up or progress.offers <= 0 or progress.most < self._step
            progress.saved = [0] * len(progress.saved)
            progress.checkpoint = 0

    def on_finished(self, request: Request) -> None:
        """Forgets it. A load under way is awaited by the engine, and `on_output` hears of it."""
        self._progress.pop(request.request_id, None)
        super().on_finished(request)


def _runs(blocks: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges [begin, end)."""
    found: list[tuple[int, int]] = []
    for block in blocks:
        if found and found[-1][1] == block:
            found[-1] = (found[-1][0], block + 1)
        else:
            found.append((block, block + 1))
    return found
