"""The row about routers, in the form of generate.py."""

from queries import RI, SEL

ROWS = [
    (
        "Router",
        [
            (
                "HTTP answers by route and code",
                "ops",
                "Of OpenAI's API. 429: shed. 503: no worker, or too many large requests.",
                [
                    (
                        "{{route}} {{code}}",
                        "sum by (route, code) "
                        f"(rate(cairn_router_http_answers_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
            (
                "Time to first token at the router, p50 and p99",
                "s",
                "From the arrival of a request, its wait at the worker included.",
                [
                    (
                        "p50",
                        "histogram_quantile(0.5, sum by (le) "
                        f"(rate(cairn_router_ttft_seconds_bucket{{{SEL}}}{RI})))",
                    ),
                    (
                        "p99",
                        "histogram_quantile(0.99, sum by (le) "
                        f"(rate(cairn_router_ttft_seconds_bucket{{{SEL}}}{RI})))",
                    ),
                ],
            ),
            (
                "Routed requests by how they ended",
                "ops",
                "Shed: every worker was too busy. Broken: the worker failed in mid-stream.",
                [
                    (
                        "{{result}}",
                        f"sum by (result) (rate(cairn_router_requests_total{{{SEL}}}{RI}))",
                    ),
                    (
                        "tried again",
                        f"sum(rate(cairn_router_tries_again_total{{{SEL}}}{RI}))",
                    ),
                ],
            ),
            (
                "Share of requests that were shed",
                "percentunit",
                "Refused because they would have waited too long, or were too many.",
                [
                    (
                        "shed",
                        f'sum(rate(cairn_router_requests_total{{{SEL},result="shed"}}{RI})) '
                        f"/ sum(rate(cairn_router_requests_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
            (
                "Picks by what the worker holds",
                "ops",
                "Of the prompt. most: as much as any other. less: load decided against the worker "
                "that holds most. none: nobody holds any of it.",
                [
                    (
                        "{{prefix}}",
                        f"sum by (prefix) (rate(cairn_router_picks_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
            (
                "Held share of prompt tokens",
                "percentunit",
                "Tokens of prompts that were not computed.",
                [
                    (
                        "held",
                        f'sum(rate(cairn_router_tokens_total{{{SEL},kind="cached"}}{RI})) '
                        f'/ sum(rate(cairn_router_tokens_total{{{SEL},kind="prompt"}}{RI}))',
                    )
                ],
            ),
            (
                "Index",
                "bytes",
                "Memory of the index of who holds what, and its bound.",
                [
                    ("{{instance}}", f"cairn_router_index_bytes{{{SEL}}}"),
                    ("bound", f"max(cairn_router_index_max_bytes{{{SEL}}})"),
                ],
            ),
            (
                "Workers by condition",
                "short",
                "As each router sees them. Only ready ones get requests.",
                [
                    (
                        "{{instance}} {{condition}}",
                        f"sum by (instance, condition) (cairn_router_workers{{{SEL}}})",
                    )
                ],
            ),
            (
                "Time in the router, p50 and p99",
                "s",
                "From a request's arrival until it was sent to a worker: tokens, keys, decision.",
                [
                    (
                        "p50",
                        "histogram_quantile(0.5, sum by (le) "
                        f"(rate(cairn_router_prepare_seconds_bucket{{{SEL}}}{RI})))",
                    ),
                    (
                        "p99",
                        "histogram_quantile(0.99, sum by (le) "
                        f"(rate(cairn_router_prepare_seconds_bucket{{{SEL}}}{RI})))",
                    ),
                ],
            ),
            (
                "Under way",
                "short",
                "Requests, and streams of events that are open.",
                [
                    ("requests", f"sum(cairn_router_active_requests{{{SEL}}})"),
                    ("streams", f"sum(cairn_router_http_open_streams{{{SEL}}})"),
                ],
            ),
            (
                "Memory of routers in use of its bound",
                "percentunit",
                "By what it is for.",
                [
                    (
                        "{{item}}",
                        f"max by (item) (cairn_router_memory_used_bytes{{{SEL}}} "
                        f"/ cairn_router_memory_bound_bytes{{{SEL}}})",
                    )
                ],
            ),
            (
                "Refused by routers for memory",
                "ops",
                "Requests that needed memory beyond a bound, by what it is for.",
                [
                    (
                        "{{item}}",
                        f"sum by (item) (rate(cairn_router_memory_refusals_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
        ],
    ),
]
