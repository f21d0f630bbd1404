"""Rows about workers, in the form of generate.py."""

from queries import RI, SEL

ROWS = [
    (
        "Workers",
        [
            (
                "Time to first token, p50 and p95",
                "s",
                "From leaving the queue to the first token.",
                [
                    (
                        "p50",
                        "histogram_quantile(0.5, sum by (le) "
                        f"(rate(cairn_worker_ttft_seconds_bucket{{{SEL}}}{RI})))",
                    ),
                    (
                        "p95",
                        "histogram_quantile(0.95, sum by (le) "
                        f"(rate(cairn_worker_ttft_seconds_bucket{{{SEL}}}{RI})))",
                    ),
                ],
            ),
            (
                "Tokens per second",
                "short",
                "Of prompts, fetched or computed; generated; prefilled in idle time.",
                [("{{kind}}", f"sum by (kind) (rate(cairn_worker_tokens_total{{{SEL}}}{RI}))")],
            ),
            (
                "Encoding and decoding KV",
                "short",
                "Cores that codecs keep busy, by codec and direction. The raw recipe needs none.",
                [
                    (
                        "{{codec}} {{direction}}",
                        "sum by (codec, direction) "
                        f"(rate(cairn_worker_codec_seconds_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
            (
                "Cache connection",
                "short",
                "1: connected; breaker 1: open, the worker recomputes without asking.",
                [
                    ("connected {{instance}}", f"cairn_worker_cache_connected{{{SEL}}}"),
                    ("breaker {{instance}}", f"cairn_worker_cache_breaker_open{{{SEL}}}"),
                ],
            ),
        ],
    ),
    (
        "Queue and batch of workers",
        [
            (
                "Requests that wait and run",
                "short",
                "Prompts that are computed, requests that decode, and those that were parked.",
                [
                    ("queued", f"sum(cairn_worker_queued_requests{{{SEL}}})"),
                    ("{{state}}", f"sum by (state) (cairn_worker_running_requests{{{SEL}}})"),
                ],
            ),
            (
                "Prefill backlog",
                "s",
                "Seconds until the prompts that wait or run are computed, at the measured speed.",
                [("{{instance}}", f"cairn_worker_prefill_backlog_seconds{{{SEL}}}")],
            ),
            (
                "Time in the queue, p50 and p95",
                "s",
                "Before a request begins.",
                [
                    (
                        "p50",
                        "histogram_quantile(0.5, sum by (le) "
                        f"(rate(cairn_worker_queue_seconds_bucket{{{SEL}}}{RI})))",
                    ),
                    (
                        "p95",
                        "histogram_quantile(0.95, sum by (le) "
                        f"(rate(cairn_worker_queue_seconds_bucket{{{SEL}}}{RI})))",
                    ),
                ],
            ),
            (
                "Requests by how they ended",
                "ops",
                "Refused: too many wait, or it would have waited too long.",
                [
                    (
                        "{{result}}",
                        f"sum by (result) (rate(cairn_worker_requests_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
            (
                "Parked requests",
                "ops",
                "Requests that gave their pages to a more urgent one.",
                [("{{instance}}", f"rate(cairn_worker_parked_total{{{SEL}}}{RI})")],
            ),
            (
                "KV pages",
                "short",
                "Pages of the pool; requests wait when none are free.",
                [("{{state}}", f"sum by (state) (cairn_worker_kv_pages{{{SEL}}})")],
            ),
            (
                "Prompt tokens that others computed",
                "short",
                "Tokens per second that requests took from others which computed them.",
                [("shared", f'sum(rate(cairn_worker_tokens_total{{{SEL},kind="shared"}}{RI}))')],
            ),
            (
                "Brought from disk while requests wait",
                "ops",
                "Blocks that look-ahead had copied to memory.",
                [("blocks", f"sum(rate(cairn_worker_lookahead_blocks_total{{{SEL}}}{RI}))")],
            ),
            (
                "Memory of workers in use of its bound",
                "percentunit",
                "By what it is for.",
                [
                    (
                        "{{item}}",
                        f"max by (item) (cairn_worker_memory_used_bytes{{{SEL}}} "
                        f"/ cairn_worker_memory_bound_bytes{{{SEL}}})",
                    )
                ],
            ),
            (
                "Refused by workers for memory",
                "ops",
                "Requests that needed memory beyond a bound, by what it is for.",
                [
                    (
                        "{{item}}",
                        f"sum by (item) (rate(cairn_worker_memory_refusals_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
        ],
    ),
    (
        "Contexts read by rows",
        [
            (
                "Rows that steps choose",
                "ops",
                "Chosen; of these near already (hit), and not there in time (late).",
                [
                    (
                        "{{result}}",
                        f"sum by (result) (rate(cairn_worker_read_rows_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
            (
                "Bytes read of contexts",
                "Bps",
                "By rows, from host memory or from the node.",
                [("read", f"sum(rate(cairn_worker_read_bytes_total{{{SEL}}}{RI}))")],
            ),
            (
                "Steps over contexts by rows",
                "ops",
                "Tokens decoded over a context of which only a copy or an index is near.",
                [("steps", f"sum(rate(cairn_worker_read_steps_total{{{SEL}}}{RI}))")],
            ),
            (
                "Prompt tokens that were far",
                "short",
                "Tokens per second whose KV was read by rows while the answer was decoded.",
                [("tokens", f"sum(rate(cairn_worker_far_tokens_total{{{SEL}}}{RI}))")],
            ),
        ],
    ),
]
