"""Panels and rows that several dashboards have."""

from panels import ANY, NEEDED, above, below, heat, lines, stat
from queries import CAIRN, WHERE, each, limited, per_second, quantile, share, total

HITS = share('cairn_lookup_tokens_total{tier!="none"}', "cairn_lookup_tokens_total", legend="hits")
HIT_RATIO = stat(
    "Token hit ratio",
    "percentunit",
    "Share of looked-up prompt tokens that a tier could serve.",
    HITS,
    ANY,
    "cairn-node",
)
LOOKED_UP = lines(
    "Looked-up blocks by tier",
    "ops",
    "Where looked-up blocks were found. none: a miss.",
    per_second("cairn_lookup_blocks_total", "tier"),
)
MOVED = lines(
    "Bytes moved",
    "Bps",
    "Between tiers and clients.",
    per_second("cairn_transfer_bytes_total", "src", "dst", legend="{{src}} to {{dst}}"),
)
MEMBERS = stat(
    "Live members of a node",
    "short",
    "Other members of the cluster, the least that any node sees.",
    each('min(cairn_cluster_members{state="live"})'),
    NEEDED,
    "cairn-cluster",
)
TOKENS = lines(
    "Tokens by kind",
    "cps",
    "Of prompts, fetched, shared or computed; generated; prefilled in idle time.",
    per_second("cairn_worker_tokens_total", "kind"),
)
WAITING = lines(
    "Requests that wait and run",
    "short",
    "Prompts that are computed, requests that decode, and those that were parked.",
    total("cairn_worker_queued_requests", legend="queued"),
    total("cairn_worker_running_requests", "state"),
)
BACKLOG = stat(
    "Longest backlog of a worker",
    "s",
    "Seconds until the prompts that wait or run there are computed.",
    each("max(cairn_worker_prefill_backlog_seconds)"),
    above(10, 30),
    "cairn-workers",
)
READY_WORKERS = stat(
    "Ready workers of a router",
    "short",
    "The least that any router sees.",
    each('min(cairn_router_workers{condition="ready"})'),
    NEEDED,
    "cairn-router",
)
FIRST_TOKEN = stat(
    "First token, p95",
    "s",
    "At the routers, from the arrival of a request, its wait at the worker included.",
    quantile(0.95, "cairn_router_ttft_seconds"),
    above(2, 10),
    "cairn-router",
)
FIRST_TOKENS = heat(
    "Time to the first token",
    "From the arrival of a request, its wait at the worker included.",
    "cairn_router_ttft_seconds",
)
SHED = stat(
    "Requests that were shed",
    "percentunit",
    "Share of the requests that routers refused because workers are too busy.",
    share('cairn_router_requests_total{result="shed"}', "cairn_router_requests_total"),
    above(0.001, 0.02),
    "cairn-router",
)
REFUSED_HTTP = lines(
    "Refused at the HTTP port",
    "ops",
    "Connections without a place, requests that are no HTTP or too large, slow ones.",
    per_second("cairn_router_http_refused_total", "reason"),
)
CERTIFICATE_LEFT = "cairn_tls_cert_expiry_timestamp_seconds - time()"
CERTIFICATE = stat(
    "First certificate ends in",
    "s",
    "Renew the Secret: processes read its files again, without a restart. Empty without TLS.",
    each(f"min({CERTIFICATE_LEFT})"),
    below(14 * 86400, 7 * 86400),
    "cairn-security",
)


def calls(of):
    """The gRPC calls that a kind of program answers."""

    def by(counter, *labels, **more):
        return per_second(counter, *labels, of=of, **more)

    duration = "cairn_rpc_duration_seconds"
    return [
        heat("Time of calls", "From the arrival of a call to its status.", duration, of=of),
        lines(
            "Time of calls by method, p99",
            "s",
            "The slowest hundredth of each method takes longer.",
            quantile(0.99, duration, "method", of=of, legend="{{method}}"),
        ),
        lines(
            "Calls by method",
            "reqps",
            "Calls that ended.",
            by("cairn_rpc_requests_total", "method"),
        ),
        lines(
            "Calls that did not end in OK",
            "reqps",
            "By code. NotFound, AlreadyExists and ResourceExhausted are answers, not failures.",
            by('cairn_rpc_requests_total{code!="OK"}', "code"),
        ),
        lines(
            "Calls under way",
            "short",
            "By method. Watches and sessions stay under way.",
            total(limited("cairn_rpc_in_flight_requests", of), "method"),
        ),
        lines(
            "Bytes of requests and answers",
            "Bps",
            "By method; received: requests, sent: answers.",
            by("cairn_rpc_received_bytes_total", "method", legend="received {{method}}"),
            by("cairn_rpc_sent_bytes_total", "method", legend="sent {{method}}"),
        ),
        lines(
            "Refused calls",
            "reqps",
            "Refused before any work was done for them, by reason.",
            by("cairn_rpc_rejected_total", "reason"),
        ),
        lines(
            "Longest work on one call",
            "s",
            "A thread that polls for calls has worked on one of them for so long. At 10 s the "
            "process counts as dead.",
            each(limited("cairn_rpc_poller_busy_seconds", of)),
        ),
    ]


def process(of=CAIRN):
    def every(query):
        return each(limited(query, of))

    return [
        lines("CPU", "short", "Cores in use.", every("rate(process_cpu_seconds_total[R])")),
        lines(
            "Resident memory",
            "bytes",
            "A node's arena is part of it.",
            every("process_resident_memory_bytes"),
        ),
        lines(
            "Open descriptors",
            "short",
            "Files, connections and segments of memory.",
            every("process_open_fds"),
        ),
        lines(
            "State",
            "short",
            "1 for the state that a process is in.",
            (f"{WHERE} {{{{state}}}}", limited("cairn_node_state == 1", of)),
        ),
    ]


def memory(prefix, full):
    """Memory by what it is for. `prefix` of the metrics; `full`: what happens at the bound."""
    return [
        lines(
            "Memory in use of its bound",
            "percentunit",
            f"The fullest process, by what the memory is for. At 1, {full}.",
            (
                "{{item}}",
                f"max by (item) ({prefix}_memory_used_bytes / {prefix}_memory_bound_bytes)",
            ),
        ),
        lines(
            "Refused for memory",
            "ops",
            "Requests that needed memory beyond a bound, by what it is for.",
            per_second(f"{prefix}_memory_refusals_total", "item"),
        ),
    ]
