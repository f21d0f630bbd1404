"""Rows about cache nodes, in the form of generate.py."""

from queries import RI, SEL

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
]
