#!/usr/bin/env python3
"""Writes cairn-node.json, the Grafana dashboard of cache nodes, workers and routers. Run it after a
change here; a test compares.

python3 helm/cairn/files/dashboards/generate.py
"""

import json
import pathlib

SEL = 'job=~"$job",instance=~"$instance"'
RI = "[$__rate_interval]"

# (row title, [(panel title, unit, description, [(legend, PromQL)])])
ROWS = [
    (
        "Is it working",
        [
            (
                "Token hit ratio",
                "percentunit",
                "Share of looked-up prompt tokens that a tier could serve.",
                [
                    (
                        "hit ratio",
                        f'sum(rate(cairn_lookup_tokens_total{{{SEL},tier!="none"}}{RI})) '
                        f"/ sum(rate(cairn_lookup_tokens_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
            (
                "Tokens saved per second",
                "short",
                "Prompt tokens matched instead of computed.",
                [("tokens/s", f"sum(rate(cairn_tokens_saved_total{{{SEL}}}{RI}))")],
            ),
            (
                "Prefill seconds saved per second",
                "s",
                "By the prefill speed that workers report with each match.",
                [("saved", f"sum(rate(cairn_prefill_seconds_saved_total{{{SEL}}}{RI}))")],
            ),
            (
                "Node state",
                "short",
                "1 for the state that a node is in.",
                [("{{instance}} {{state}}", f"cairn_node_state{{{SEL}}}")],
            ),
        ],
    ),
    (
        "Effectiveness",
        [
            (
                "Looked-up blocks by tier",
                "ops",
                "Where looked-up blocks were found; none: a miss.",
                [("{{tier}}", f"sum by (tier) (rate(cairn_lookup_blocks_total{{{SEL}}}{RI}))")],
            ),
            (
                "Misses by reason",
                "ops",
                "Blocks that were asked for and not served.",
                [("{{reason}}", f"sum by (reason) (rate(cairn_miss_blocks_total{{{SEL}}}{RI}))")],
            ),
            (
                "Matched prefix, median",
                "short",
                "Tokens of the longest complete prefix of a prompt.",
                [
                    (
                        "p50",
                        "histogram_quantile(0.5, sum by (le) "
                        f"(rate(cairn_matched_prefix_tokens_bucket{{{SEL}}}{RI})))",
                    )
                ],
            ),
        ],
    ),
    (
        "Latency and errors",
        [
            (
                "RPC p99",
                "s",
                "99th percentile by method.",
                [
                    (
                        "{{method}}",
                        "histogram_quantile(0.99, sum by (le, method) "
                        f"(rate(cairn_rpc_duration_seconds_bucket{{{SEL}}}{RI})))",
                    )
                ],
            ),
            (
                "RPCs per second",
                "ops",
                "By method.",
                [("{{method}}", f"sum by (method) (rate(cairn_rpc_requests_total{{{SEL}}}{RI}))")],
            ),
            (
                "RPCs that did not end in OK",
                "ops",
                "By code.",
                [
                    (
                        "{{code}}",
                        f'sum by (code) (rate(cairn_rpc_requests_total{{{SEL},code!="OK"}}{RI})) '
                        "or vector(0)",
                    )
                ],
            ),
            (
                "Refused RPCs",
                "ops",
                "By reason.",
                [("{{reason}}", f"sum by (reason) (rate(cairn_rpc_rejected_total{{{SEL}}}{RI}))")],
            ),
        ],
    ),
    (
        "Tiers",
        [
            (
                "Used share of capacity",
                "percentunit",
                "A full host tier is normal for a cache.",
                [
                    (
                        "{{tier}}",
                        f"sum by (tier) (cairn_tier_used_bytes{{{SEL}}}) "
                        f"/ sum by (tier) (cairn_tier_capacity_bytes{{{SEL}}})",
                    )
                ],
            ),
            (
                "Blocks",
                "short",
                "Complete blocks by tier.",
                [("{{tier}}", f"sum by (tier) (cairn_tier_blocks{{{SEL}}})")],
            ),
            (
                "Bytes moved",
                "Bps",
                "Between tiers and clients.",
                [
                    (
                        "{{src}} to {{dst}}",
                        f"sum by (src, dst) (rate(cairn_transfer_bytes_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
            (
                "Evicted blocks",
                "ops",
                "By tier.",
                [("{{tier}}", f"sum by (tier) (rate(cairn_evicted_blocks_total{{{SEL}}}{RI}))")],
            ),
            (
                "Hints for placement",
                "ops",
                "Matches whose client said what the conversation does next.",
                [("{{next}}", f"sum by (next) (rate(cairn_hinted_matches_total{{{SEL}}}{RI}))")],
            ),
            (
                "Not yet on disk",
                "bytes",
                "Committed bytes that a kill -9 would lose.",
                [("unflushed", f"sum(cairn_unflushed_bytes{{{SEL}}})")],
            ),
            (
                "Checksum failures",
                "ops",
                "Bad blocks found and removed. Anything but zero is worth a look at the hardware.",
                [("failures", f"sum(rate(cairn_checksum_failures_total{{{SEL}}}{RI}))")],
            ),
        ],
    ),
    (
        "What placement learned",
        [
            (
                "Blocks by group",
                "short",
                "Of the eviction policy cairn, remembered ones included. lru learns nothing.",
                [("{{group}}", f"sum by (group) (cairn_placement_blocks{{{SEL}}})")],
            ),
            (
                "Uses per block and hour",
                "short",
                "What keeping a block of the group is worth. Empty if the policy learns nothing.",
                [
                    (
                        "{{group}}",
                        f"3600 * sum by (group) (cairn_placement_uses{{{SEL}}}) "
                        f"/ sum by (group) (cairn_placement_block_seconds{{{SEL}}})",
                    )
                ],
            ),
        ],
    ),
    (
        "Process",
        [
            (
                "Resident memory",
                "bytes",
                "Arena included.",
                [("{{instance}}", f"process_resident_memory_bytes{{{SEL}}}")],
            ),
            (
                "CPU",
                "short",
                "Cores in use.",
                [("{{instance}}", f"rate(process_cpu_seconds_total{{{SEL}}}{RI})")],
            ),
            (
                "Leases, reservations, sessions",
                "short",
                "What clients hold.",
                [
                    ("leases", f"sum(cairn_leases{{{SEL}}})"),
                    ("reservations", f"sum(cairn_reservations{{{SEL}}})"),
                    ("sessions", f"sum(cairn_sessions{{{SEL}}})"),
                ],
            ),
            (
                "Memory in use of its bound",
                "percentunit",
                "By what it is for. At 1, blocks are evicted (host, index), calls wait "
                "(rpc, transfers, fetch_headers) or are refused.",
                [
                    (
                        "{{item}}",
                        f"max by (item) (cairn_memory_used_bytes{{{SEL}}} "
                        f"/ cairn_memory_bound_bytes{{{SEL}}})",
                    )
                ],
            ),
            (
                "Refused for memory",
                "ops",
                "Requests that needed memory beyond a bound, by what it is for.",
                [
                    (
                        "{{item}}",
                        f"sum by (item) (rate(cairn_memory_refusals_total{{{SEL}}}{RI}))",
                    )
                ],
            ),
        ],
    ),
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
                        "(rate(cairn_worker_ttft_seconds_bucket[$__rate_interval])))",
                    ),
                    (
                        "p95",
                        "histogram_quantile(0.95, sum by (le) "
                        "(rate(cairn_worker_ttft_seconds_bucket[$__rate_interval])))",
                    ),
                ],
            ),
            (
                "Tokens per second",
                "short",
                "Of prompts, fetched or computed; generated; prefilled in idle time.",
                [("{{kind}}", f"sum by (kind) (rate(cairn_worker_tokens_total{RI}))")],
            ),
            (
                "Encoding and decoding KV",
                "short",
                "Cores that codecs keep busy, by codec and direction. The raw recipe needs none.",
                [
                    (
                        "{{codec}} {{direction}}",
                        f"sum by (codec, direction) (rate(cairn_worker_codec_seconds_total{RI}))",
                    )
                ],
            ),
            (
                "Cache connection",
                "short",
                "1: connected; breaker 1: open, the worker recomputes without asking.",
                [
                    ("connected {{instance}}", "cairn_worker_cache_connected"),
                    ("breaker {{instance}}", "cairn_worker_cache_breaker_open"),
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
                    ("queued", "sum(cairn_worker_queued_requests)"),
                    ("{{state}}", "sum by (state) (cairn_worker_running_requests)"),
                ],
            ),
            (
                "Prefill backlog",
                "s",
                "Seconds until the prompts that wait or run are computed, at the measured speed.",
                [("{{instance}}", "cairn_worker_prefill_backlog_seconds")],
            ),
            (
                "Time in the queue, p50 and p95",
                "s",
                "Before a request begins.",
                [
                    (
                        "p50",
                        "histogram_quantile(0.5, sum by (le) "
                        "(rate(cairn_worker_queue_seconds_bucket[$__rate_interval])))",
                    ),
                    (
                        "p95",
                        "histogram_quantile(0.95, sum by (le) "
                        "(rate(cairn_worker_queue_seconds_bucket[$__rate_interval])))",
                    ),
                ],
            ),
            (
                "Requests by how they ended",
                "ops",
                "Refused: too many wait, or it would have waited too long.",
                [("{{result}}", f"sum by (result) (rate(cairn_worker_requests_total{RI}))")],
            ),
            (
                "Parked requests",
                "ops",
                "Requests that gave their pages to a more urgent one.",
                [("{{instance}}", f"rate(cairn_worker_parked_total{RI})")],
            ),
            (
                "KV pages",
                "short",
                "Pages of the pool; requests wait when none are free.",
                [("{{state}}", "sum by (state) (cairn_worker_kv_pages)")],
            ),
            (
                "Prompt tokens that others computed",
                "short",
                "Tokens per second that requests took from others which computed them.",
                [("shared", f'sum(rate(cairn_worker_tokens_total{{kind="shared"}}{RI}))')],
            ),
            (
                "Brought from disk while requests wait",
                "ops",
                "Blocks that look-ahead had copied to memory.",
                [("blocks", f"sum(rate(cairn_worker_lookahead_blocks_total{RI}))")],
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
                [("{{result}}", f"sum by (result) (rate(cairn_worker_read_rows_total{RI}))")],
            ),
            (
                "Bytes read of contexts",
                "Bps",
                "By rows, from host memory or from the node.",
                [("read", f"sum(rate(cairn_worker_read_bytes_total{RI}))")],
            ),
            (
                "Steps over contexts by rows",
                "ops",
                "Tokens decoded over a context of which only a copy or an index is near.",
                [("steps", f"sum(rate(cairn_worker_read_steps_total{RI}))")],
            ),
            (
                "Prompt tokens that were far",
                "short",
                "Tokens per second whose KV was read by rows while the answer was decoded.",
                [("tokens", f"sum(rate(cairn_worker_far_tokens_total{RI}))")],
            ),
        ],
    ),
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
        ],
    ),
]


def variable(name, query, multi):
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": query,
        "refresh": 2,
        "includeAll": multi,
        "multi": multi,
        "allValue": ".+" if multi else None,
        "current": {"text": "All", "value": "$__all"} if multi else {},
    }


def dashboard():
    panels, y, number = [], 0, 0
    for title, row in ROWS:
        number += 1
        panels.append(
            {
                "id": number,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
            }
        )
        y += 1
        width = 24 // min(len(row), 4)
        for i, (name, unit, description, targets) in enumerate(row):
            number += 1
            panels.append(
                {
                    "id": number,
                    "type": "timeseries",
                    "title": name,
                    "description": description,
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "gridPos": {"h": 8, "w": width, "x": width * (i % 4), "y": y + 8 * (i // 4)},
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "targets": [
                        {"refId": chr(ord("A") + j), "expr": expr, "legendFormat": legend}
                        for j, (legend, expr) in enumerate(targets)
                    ],
                }
            )
        y += 8 * ((len(row) + 3) // 4)
    return {
        "uid": "cairn-node",
        "title": "Cairn / Node",
        "tags": ["cairn"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                variable("job", "label_values(cairn_build_info, job)", True),
                variable("instance", 'label_values(cairn_build_info{job=~"$job"}, instance)', True),
            ]
        },
        "panels": panels,
    }


def text():
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("cairn-node.json").write_text(text(), encoding="utf-8")
