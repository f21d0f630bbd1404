"""How long requests wait at workers, what workers compute, and what the cache spares them."""

import shared
from panels import ANY, NONE_ALLOWED, above, heat, lines, stat
from queries import WHERE, WORKER, count, each, per_second, quantile, share, total

UID, TITLE = "cairn-workers", "Workers"
PROMPTS = 'cairn_worker_tokens_total{kind=~"computed|fetched|shared"}'


ROWS = [
    (
        "Do they keep up",
        [
            stat(
                "First token, p95",
                "s",
                "From leaving the queue to the first token.",
                quantile(0.95, "cairn_worker_ttft_seconds"),
                above(2, 10),
            ),
            stat(
                "Time in the queue, p95",
                "s",
                "Before a request begins.",
                quantile(0.95, "cairn_worker_queue_seconds"),
                above(1, 10),
            ),
            shared.BACKLOG,
            stat(
                "Refused requests",
                "reqps",
                "Too many wait, or they would have waited too long.",
                per_second('cairn_worker_requests_total{result="refused"}'),
                above(0.01, 0.1),
            ),
            stat(
                "Prompt tokens that were not computed",
                "percentunit",
                "Share of prompt tokens that were fetched, or shared with another request.",
                share('cairn_worker_tokens_total{kind=~"fetched|shared"}', PROMPTS),
                ANY,
            ),
            stat(
                "Fullest KV pool",
                "percentunit",
                "Requests wait when no pages are free.",
                each(
                    'max(cairn_worker_kv_pages{state="used"} / on (job, instance) '
                    "sum by (job, instance) (cairn_worker_kv_pages))"
                ),
                above(0.9, 1),
            ),
            stat(
                "Workers without their cache",
                "short",
                "They have no session, or their circuit breaker is open. They compute everything.",
                count("cairn_worker_cache_connected == 0 or cairn_worker_cache_breaker_open == 1"),
                NONE_ALLOWED,
            ),
        ],
    ),
    (
        "Requests",
        [
            heat(
                "Time to the first token",
                "From leaving the queue.",
                "cairn_worker_ttft_seconds",
            ),
            lines(
                "Time to the first token, p50 and p95",
                "s",
                "By whether some of the prompt was fetched.",
                *(
                    quantile(
                        q,
                        "cairn_worker_ttft_seconds",
                        "prefix",
                        legend=f"p{100 * q:g} {{{{prefix}}}}",
                    )
                    for q in (0.5, 0.95)
                ),
            ),
            heat("Time in the queue", "Before a request begins.", "cairn_worker_queue_seconds"),
            heat(
                "Time of a request",
                "From its arrival to the end of its answer.",
                "cairn_worker_request_seconds",
            ),
            heat("Time between tokens", "The mean of each answer.", "cairn_worker_token_seconds"),
            lines(
                "Requests by how they ended",
                "reqps",
                "Refused: too many wait, or it would have waited too long.",
                per_second("cairn_worker_requests_total", "result"),
            ),
            shared.WAITING,
            lines(
                "Prefill backlog",
                "s",
                "Seconds until the prompts that wait or run are computed, at the measured speed.",
                each("cairn_worker_prefill_backlog_seconds"),
            ),
            lines(
                "Parked requests",
                "ops",
                "Requests that gave their pages to others.",
                each("rate(cairn_worker_parked_total[R])"),
            ),
            lines(
                "KV pages",
                "short",
                "Pages of the pool; a page holds a block.",
                total("cairn_worker_kv_pages", "state"),
            ),
        ],
    ),
    (
        "Tokens",
        [
            shared.TOKENS,
            lines(
                "Measured speed of prompts",
                "cps",
                "Tokens computed in a second while nothing else is, and while others decode. "
                "0: unknown.",
                (f"{WHERE} alone", "cairn_worker_prefill_tokens_per_second"),
                (f"{WHERE} next to decodes", "cairn_worker_drain_tokens_per_second"),
            ),
            lines(
                "Measured time of a step",
                "s",
                "A step that decodes, and what one more decode adds. 0: unknown.",
                (f"{WHERE} step", "cairn_worker_step_seconds"),
                (f"{WHERE} one more", "cairn_worker_decode_seconds"),
            ),
            lines(
                "Finished turns that were not prefilled",
                "ops",
                "There were too many, or there was no room.",
                per_second("cairn_worker_idle_turns_dropped_total", legend="turns"),
            ),
        ],
    ),
    (
        "Cache",
        [
            heat(
                "Time of a match",
                "From asking the node to its answer.",
                "cairn_worker_match_seconds",
            ),
            heat(
                "Time of a fetch",
                "From the match to the last slice.",
                "cairn_worker_fetch_seconds",
            ),
            lines(
                "Connection to the cache",
                "short",
                "1: connected; breaker 1: open, the worker computes without asking.",
                (f"{WHERE} connected", "cairn_worker_cache_connected"),
                (f"{WHERE} breaker", "cairn_worker_cache_breaker_open"),
            ),
            lines(
                "Questions",
                "ops",
                "Prompts that nodes were asked about.",
                per_second("cairn_worker_matches_total", legend="prompts"),
            ),
            lines(
                "Matched blocks by outcome",
                "ops",
                "Chosen: computed, because that was faster.",
                per_second("cairn_worker_matched_blocks_total", "result"),
            ),
            lines(
                "Computed instead of fetched",
                "ops",
                "Full prompt blocks, by the reason for the first of them.",
                per_second("cairn_worker_missed_blocks_total", "reason"),
            ),
            lines(
                "Fetched bytes",
                "Bps",
                "By the node's tier; lent: read in place in the node's memory.",
                per_second("cairn_worker_fetched_bytes_total", "tier"),
                per_second("cairn_worker_lent_bytes_total", legend="lent"),
            ),
            lines(
                "Brought from disk while requests wait",
                "ops",
                "Blocks that look-ahead had copied to memory.",
                per_second("cairn_worker_lookahead_blocks_total", legend="blocks"),
            ),
            lines(
                "Pushed blocks by outcome",
                "ops",
                "Dropped: the queue was full, or the pages were needed.",
                per_second("cairn_worker_pushed_blocks_total", "result"),
            ),
            lines(
                "Pushed bytes",
                "Bps",
                "Bytes of the blocks that were stored.",
                per_second("cairn_worker_pushed_bytes_total", legend="pushed"),
            ),
            lines(
                "Queue of pushes",
                "short",
                "Blocks that wait.",
                each("cairn_worker_push_queue_blocks"),
            ),
        ],
    ),
    (
        "Codecs and GPUs",
        [
            lines(
                "Encoding and decoding KV",
                "short",
                "Cores that codecs keep busy. The raw recipe needs none.",
                per_second("cairn_worker_codec_seconds_total", "codec", "direction"),
            ),
            lines(
                "How many times smaller codecs make KV",
                "none",
                "Bytes before and after encoding. Empty while nothing is encoded.",
                share(
                    'cairn_worker_codec_input_bytes_total{direction="encode"}',
                    'cairn_worker_codec_output_bytes_total{direction="encode"}',
                    "codec",
                ),
            ),
            lines(
                "Decode steps by graphs",
                "ops",
                "On a GPU: steps that one launch did, and graphs that were noted or failed.",
                per_second("cairn_worker_decode_graph_launches_total", legend="launches"),
                per_second("cairn_worker_decode_graphs_total", "result"),
            ),
            lines(
                "Blocks encoded on GPUs",
                "ops",
                "To be pushed.",
                per_second("cairn_worker_device_encoded_blocks_total", legend="blocks"),
            ),
        ],
    ),
    (
        "Long contexts",
        [
            lines(
                "Rows that steps choose",
                "ops",
                "Chosen; of these near already (hit), and not there in time (late).",
                per_second("cairn_worker_read_rows_total", "result"),
            ),
            lines(
                "Bytes read of contexts",
                "Bps",
                "By rows, from host memory or from the node.",
                per_second("cairn_worker_read_bytes_total", legend="read"),
            ),
            lines(
                "Steps over contexts by rows",
                "ops",
                "Tokens decoded over a context of which only a copy or an index is near.",
                per_second("cairn_worker_read_steps_total", legend="steps"),
            ),
            lines(
                "Prompt tokens that were far",
                "cps",
                "Tokens whose KV was read by rows while the answer was decoded.",
                per_second("cairn_worker_far_tokens_total", legend="tokens"),
            ),
            lines(
                "Indexes of contexts",
                "ops",
                "Fetched from the node, and made and stored.",
                per_second("cairn_worker_read_indexes_total", "result"),
            ),
            lines(
                "Prompts that were spilt",
                "ops",
                "They never fit into the KV pool. Repeats: passes whose spilt KV did not come.",
                per_second("cairn_worker_spilled_prompts_total", legend="prompts"),
                per_second("cairn_worker_spilled_repeats_total", legend="repeats"),
            ),
            lines(
                "Spilt tokens",
                "cps",
                "Lost: computed again, because the node had them no more.",
                per_second("cairn_worker_spilled_tokens_total", "result"),
            ),
            lines(
                "Bytes of spilt KV read back",
                "Bps",
                "Lent: read in place in the node's memory.",
                per_second("cairn_worker_spilled_read_bytes_total", "how"),
            ),
            lines(
                "Windows of spilt KV",
                "ops",
                "Already there when attention read them (ready), or waited for (late).",
                per_second("cairn_worker_spilled_windows_total", "result"),
            ),
            lines(
                "Waiting for spilt KV",
                "s",
                "Seconds a second that attention waits.",
                per_second("cairn_worker_spilled_wait_seconds_total", legend="waiting"),
            ),
        ],
    ),
    (
        "Memory",
        shared.memory(
            "cairn_worker",
            "requests are refused (near, rpc) or wait (pool, parking); "
            "weights and compute are always there",
        ),
    ),
    ("Calls", shared.calls(WORKER)),
    ("Processes", shared.process(WORKER)),
]
