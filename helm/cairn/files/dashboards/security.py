"""Whether certificates end soon, who was refused and why, and whether lines of logs were lost."""

import shared
from panels import NONE_ALLOWED, above, lines, stat, table
from queries import count, last_hour, per_second

UID, TITLE = "cairn-security", "Security and refusals"
ENDS = "cairn_tls_cert_expiry_timestamp_seconds"
REFUSALS = [f"cairn_{program}memory_refusals_total" for program in ("", "worker_", "router_")]

ROWS = [
    (
        "Since an hour ago",
        [
            shared.CERTIFICATE,
            stat(
                "Processes with TLS files that are refused",
                "short",
                "They go on with the files of before until these end. Their logs say why.",
                count("cairn_tls_files_refused == 1"),
                NONE_ALLOWED,
            ),
            stat(
                "Processes with a policy that is refused",
                "short",
                "The policy of before holds. Their logs say why.",
                count("cairn_auth_policy_refused == 1"),
                NONE_ALLOWED,
            ),
            stat(
                "Files of keys that are stale",
                "short",
                "A key that was taken away since is still valid. The router's log says why.",
                count("cairn_router_keys_stale == 1"),
                NONE_ALLOWED,
            ),
            stat(
                "Refused identities",
                "short",
                "Callers that a policy or the rules of administrators and members refuse.",
                last_hour('cairn_rpc_rejected_total{reason="auth"}'),
                above(1, 100),
            ),
            stat(
                "Requests with a wrong key",
                "short",
                "HTTP answers with the code 401 or 403.",
                last_hour('cairn_router_http_answers_total{code=~"401|403"}'),
                above(1, 100),
            ),
            stat(
                "Refused on the same machine",
                "short",
                "Connections and descriptors of the same-node path that are not permitted.",
                last_hour(
                    'cairn_local_connections_total{outcome="refused"}',
                    "cairn_local_rejected_descriptors_total",
                ),
                above(1, 100),
            ),
            stat(
                "Refused for memory",
                "short",
                "Requests at nodes, workers and routers that needed more than a bound.",
                last_hour(*REFUSALS),
                above(1, 100),
            ),
            stat(
                "Lost log lines",
                "short",
                "Nobody read stderr quickly enough, or an event wrote too many lines.",
                last_hour("cairn_log_lost_lines_total"),
                above(1, 1000),
            ),
            stat(
                "Wrong bytes of others",
                "short",
                "Blocks that failed their check: in memory, on disk, from members, over links.",
                last_hour(
                    "cairn_checksum_failures_total",
                    "cairn_cluster_wrong_reads_total",
                    "cairn_link_wrong_blocks_total",
                ),
                NONE_ALLOWED,
            ),
        ],
    ),
    (
        "Certificates and keys",
        [
            table(
                "Certificates",
                "Each process with TLS. After the end nobody can connect.",
                ("Ends", "dateTimeAsIso", f"1000 * {ENDS}"),
                ("Left", "s", shared.CERTIFICATE_LEFT),
            ),
            lines(
                "Time until certificates end",
                "s",
                "It jumps up when a new one was read.",
                ("{{pod}} {{instance}} {{cert}}", shared.CERTIFICATE_LEFT),
            ),
            lines(
                "Changes of TLS files",
                "ops",
                "taken: new connections use them. refused: they are wrong.",
                per_second("cairn_tls_reloads_total", "result"),
            ),
            lines(
                "Changes of policies",
                "ops",
                "taken: it holds. refused: it is wrong, and the one of before holds.",
                per_second("cairn_auth_policy_reloads_total", "result"),
            ),
            lines(
                "Rules of policies",
                "short",
                "Processes without a line have no policy: whoever may connect may do everything.",
                ("{{pod}} {{instance}}", "cairn_auth_policy_rules"),
            ),
            lines(
                "Files of keys that are stale, by setting",
                "short",
                "1: the file is missing, cannot be read or has a wrong line.",
                ("{{pod}} {{instance}} {{setting}}", "cairn_router_keys_stale"),
            ),
        ],
    ),
    (
        "Refused callers",
        [
            lines(
                "Refused calls by reason",
                "reqps",
                "auth: the caller may not call. share: its connection has its share of the places.",
                per_second("cairn_rpc_rejected_total", "reason"),
            ),
            lines(
                "Calls without permission",
                "reqps",
                "Calls that ended with Unauthenticated or PermissionDenied, by method.",
                per_second(
                    'cairn_rpc_requests_total{code=~"Unauthenticated|PermissionDenied"}',
                    "method",
                    "code",
                ),
            ),
            lines(
                "HTTP answers that refuse",
                "reqps",
                "401, 403: no key, or a wrong one. 413: too large. 429: too many.",
                per_second('cairn_router_http_answers_total{code=~"401|403|413|429"}', "code"),
            ),
            shared.REFUSED_HTTP,
            lines(
                "Refused on the same machine by kind",
                "ops",
                "Connections of the same-node path, and descriptors that are not permitted.",
                per_second('cairn_local_connections_total{outcome=~"refused|broken"}', "outcome"),
                per_second("cairn_local_rejected_descriptors_total", legend="descriptors"),
            ),
            lines(
                "Wrong messages",
                "ops",
                "At the port for replays of events, and rejected requests of gateways.",
                per_second("cairn_zmq_bad_requests_total", legend="replays"),
                per_second(
                    'cairn_router_picker_requests_total{result="rejected"}', legend="gateways"
                ),
            ),
        ],
    ),
    (
        "Refused for room",
        [
            *(
                lines(
                    f"Refused by {program} for memory",
                    "ops",
                    "Requests that needed memory beyond a bound, by what it is for.",
                    per_second(counter, "item"),
                )
                for program, counter in zip(("nodes", "workers", "routers"), REFUSALS, strict=True)
            ),
            lines(
                "Requests refused by load",
                "reqps",
                "Routers shed them; workers have too many.",
                per_second('cairn_router_requests_total{result="shed"}', legend="routers"),
                per_second('cairn_worker_requests_total{result="refused"}', legend="workers"),
            ),
        ],
    ),
    (
        "Logs and bytes",
        [
            lines(
                "Lost log lines by reason",
                "ops",
                "full: stderr was not read. rate: an event wrote too many.",
                per_second("cairn_log_lost_lines_total", "reason"),
            ),
            lines(
                "Spans of traces",
                "ops",
                "dropped: too many waited. failed: the collector did not take them.",
                per_second("cairn_trace_spans_total", "result"),
            ),
            lines(
                "Wrong bytes",
                "ops",
                "Blocks that failed their check. None was used.",
                per_second("cairn_checksum_failures_total", legend="in memory or on disk"),
                per_second("cairn_cluster_wrong_reads_total", legend="from members"),
                per_second("cairn_link_wrong_blocks_total", legend="over links"),
            ),
        ],
    ),
]
