"""Whether all is well, and what the cache is worth. Begin here."""

import shared
from panels import ANY, NONE_ALLOWED, above, lines, stat, table
from queries import BUILD, CAIRN, count, each, last_hour, per_second

UID, TITLE = "cairn-overview", "Overview"
# Without what is full in health: tiers and indexes are what is cached, weights are always there.
FULLEST = " or ".join(
    f"{prefix}_memory_used_bytes{only} / {prefix}_memory_bound_bytes{only}"
    for prefix, only in (
        ("cairn", '{item!~"host|index|cluster|events"}'),
        ("cairn_worker", '{item!~"weights|compute|pool"}'),
        ("cairn_router", '{item!~"index|token_cache|engine_events|reading|connections"}'),
    )
)
USED = "sum by (tier) (cairn_tier_used_bytes) / (sum by (tier) (cairn_tier_capacity_bytes) > 0)"

ROWS = [
    (
        "Is all well",
        [
            stat(
                "Processes without an answer",
                "short",
                "Prometheus does not reach them, and did so within the last hour.",
                count("up == 0 and on (job, instance) last_over_time(cairn_build_info[1h])"),
                NONE_ALLOWED,
            ),
            stat(
                "Processes that are not ready",
                "short",
                "They start or drain.",
                count('cairn_node_state{state="ready"} == 0'),
                above(1, 3),
            ),
            shared.READY_WORKERS,
            shared.MEMBERS,
            stat(
                "Fullest memory",
                "percentunit",
                "Of all bounds at which a program refuses or waits. Full tiers are normal.",
                each(f"max({FULLEST})"),
                above(0.8, 0.95),
                "cairn-security",
            ),
            stat(
                "Wrong bytes found, last hour",
                "short",
                "Blocks and reads that failed their check. None was used. Look at the hardware.",
                last_hour("cairn_checksum_failures_total", "cairn_disk_scrub_failures_total"),
                NONE_ALLOWED,
                "cairn-node",
            ),
        ],
    ),
    (
        "Is it worth its memory",
        [
            shared.HIT_RATIO,
            stat(
                "Tokens saved",
                "cps",
                "Prompt tokens that nodes found, a second, and no worker computed.",
                per_second("cairn_tokens_saved_total"),
                ANY,
                "cairn-node",
            ),
            shared.FIRST_TOKEN,
            shared.SHED,
            shared.BACKLOG,
            shared.CERTIFICATE,
        ],
    ),
    (
        "Requests",
        [
            lines(
                "Answers by HTTP code",
                "reqps",
                "At the routers. 429: shed. 503: no worker, or too many large requests.",
                per_second("cairn_router_http_answers_total", "code"),
            ),
            shared.FIRST_TOKENS,
            shared.TOKENS,
            shared.WAITING,
        ],
    ),
    (
        "Cache",
        [
            lines(
                "Token hit ratio over time",
                "percentunit",
                "Share of looked-up prompt tokens that a tier could serve.",
                shared.HITS,
            ),
            shared.LOOKED_UP,
            lines(
                "Used share of capacity",
                "percentunit",
                "A full host tier is normal for a cache.",
                ("{{tier}}", USED),
            ),
            shared.MOVED,
        ],
    ),
    (
        "Processes",
        [
            table(
                "Builds",
                "Each process, its build, how a node reads its disk, and for how long it runs.",
                (
                    "Running",
                    "s",
                    f"(time() - process_start_time_seconds) {BUILD}",
                ),
            ),
            *shared.process(CAIRN)[:2],
        ],
    ),
]
