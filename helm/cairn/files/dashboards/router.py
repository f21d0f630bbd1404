"""How clients are served by routers, where requests go, and what engines with a connector do."""

import shared
from panels import ANY, NONE_ALLOWED, above, heat, lines, stat, table
from queries import ROUTER, WHERE, each, per_second, quantile, share, total

UID, TITLE = "cairn-router", "Router and engines"
ERRORS = (
    '(sum(rate(cairn_router_http_answers_total{code=~"5.."}[R])) or vector(0))'
    " / sum(rate(cairn_router_http_answers_total[R]))"
)


def engine(name, legend):
    """A counter of the connector for vLLM."""
    return per_second(f"cairn_vllm_{name}_total", legend=legend)


def mean(seconds, events, legend):
    """The mean of a counter of the connector."""
    return share(f"cairn_vllm_{seconds}_total", f"cairn_vllm_{events}_total", legend=legend)


ROWS = [
    (
        "What clients get",
        [
            stat(
                "Answers",
                "reqps",
                "HTTP answers a second.",
                per_second("cairn_router_http_answers_total"),
                ANY,
            ),
            stat(
                "Answers that are errors",
                "percentunit",
                "Share of the HTTP answers with a code of 500 or more.",
                ("errors", ERRORS),
                above(0.001, 0.01),
            ),
            shared.FIRST_TOKEN,
            shared.SHED,
            shared.READY_WORKERS,
            stat(
                "Workers that get nothing",
                "short",
                "They are not reached, or serve other weights.",
                each('max(cairn_router_workers{condition=~"waiting|unsuitable"})'),
                NONE_ALLOWED,
            ),
            stat(
                "Own time, p99",
                "s",
                "From a request's arrival until it was sent to a worker.",
                quantile(0.99, "cairn_router_prepare_seconds"),
                above(0.05, 0.1),
            ),
            stat(
                "Streams that broke",
                "ops",
                "Their worker failed after the first token.",
                per_second('cairn_router_requests_total{result="broken"}'),
                above(0.001, 0.1),
            ),
        ],
    ),
    (
        "Requests",
        [
            lines(
                "HTTP answers by route and code",
                "reqps",
                "Of OpenAI's API. 429: shed. 503: no worker, or too many large requests.",
                per_second("cairn_router_http_answers_total", "route", "code"),
            ),
            lines(
                "Requests by how they ended",
                "reqps",
                "Shed: every worker was too busy. Broken: the worker failed in mid-stream.",
                per_second("cairn_router_requests_total", "result"),
                per_second("cairn_router_tries_again_total", legend="tried again"),
            ),
            shared.FIRST_TOKENS,
            heat(
                "Time of a request",
                "From its arrival to the end of its complete answer.",
                "cairn_router_request_seconds",
            ),
            heat("Time between tokens", "The mean of each answer.", "cairn_router_token_seconds"),
            heat(
                "Time in the router",
                "From a request's arrival until it was sent: tokens, keys, the decision.",
                "cairn_router_prepare_seconds",
            ),
            heat(
                "Time in the HTTP port",
                "That it took of a complete request before the router had it.",
                "cairn_router_http_added_seconds",
            ),
            lines(
                "Under way",
                "short",
                "Requests, prompts that wait until tokens were made of them, streams, connections.",
                total("cairn_router_active_requests", legend="requests"),
                total("cairn_router_waiting_prompts", legend="waiting prompts"),
                total("cairn_router_http_open_streams", legend="streams"),
                total("cairn_router_http_connections", legend="connections"),
            ),
            lines(
                "Text of messages",
                "Bps",
                "Known: its tokens were known from an earlier request. Made: they were not.",
                per_second("cairn_router_text_bytes_total", "tokens"),
            ),
            lines(
                "Text that waits",
                "bytes",
                "Until tokens are made of it. tenant_text bounds it for each tenant.",
                each("cairn_router_waiting_text_bytes"),
            ),
            lines(
                "Arrivals",
                "reqps",
                "Over the last minute.",
                each("cairn_router_arrivals_per_second"),
            ),
            lines(
                "Use of workers",
                "percentunit",
                "Share of the last minute in which workers had prompts to compute.",
                each("cairn_router_use_ratio"),
            ),
            lines(
                "Streams that went wrong",
                "ops",
                "Failed: ended with an error event. Aborted: the client went before the end.",
                per_second("cairn_router_http_failed_streams_total", legend="failed"),
                per_second("cairn_router_http_aborted_total", legend="aborted"),
            ),
            shared.REFUSED_HTTP,
        ],
    ),
    (
        "Where requests go",
        [
            lines(
                "Picks by what the worker holds",
                "ops",
                "most: as much as any other. less: load decided against the worker that holds "
                "most. none: nobody holds any of the prompt.",
                per_second("cairn_router_picks_total", "prefix"),
            ),
            lines(
                "Held share of prompt tokens",
                "percentunit",
                "Tokens of prompts that were not computed.",
                share(
                    'cairn_router_tokens_total{kind="cached"}',
                    'cairn_router_tokens_total{kind="prompt"}',
                    legend="held",
                ),
            ),
            lines(
                "Workers by condition",
                "short",
                "As each router sees them. Only ready ones get requests.",
                (
                    f"{WHERE} {{{{condition}}}}",
                    "sum by (pod, instance, condition) (cairn_router_workers)",
                ),
            ),
            lines(
                "Prompts computed for other workers",
                "ops",
                "By workers of the role prefill, and those of them that failed there.",
                per_second("cairn_router_paired_total", legend="asked"),
                per_second("cairn_router_failed_prefills_total", legend="failed"),
            ),
            lines(
                "Known blocks",
                "short",
                "In the index of who holds what.",
                each("cairn_router_index_entries"),
            ),
            lines(
                "Followed nodes",
                "short",
                "Cache nodes whose events the index has.",
                each("cairn_router_index_members"),
            ),
            lines(
                "Index in trouble",
                "ops",
                "Evicted: it is full (setting index). Ignored: events without sense or room.",
                per_second("cairn_router_index_evicted_total", legend="evicted"),
                per_second("cairn_router_index_ignored_total", legend="ignored"),
            ),
            *shared.memory(
                "cairn_router", "requests are refused, or the index and the token cache forget"
            ),
        ],
    ),
    (
        "Behind a gateway",
        [
            lines(
                "Requests by what the picker said",
                "reqps",
                "Rejected: something was wrong with them. Failed: all else.",
                per_second("cairn_router_picker_requests_total", "result"),
            ),
            heat(
                "Time to pick",
                "From a gateway's whole request until its endpoint was picked.",
                "cairn_router_picker_seconds",
            ),
            lines(
                "Requests of gateways under way",
                "short",
                "Their answers have not ended.",
                each("cairn_router_picker_open_streams"),
            ),
            lines(
                "Answers from another endpoint",
                "ops",
                "The gateway took another one than was picked.",
                per_second("cairn_router_picker_moved_total", legend="moved"),
            ),
        ],
    ),
    (
        "Engines with OpenAI's API",
        [
            lines(
                "Streams of KV events",
                "short",
                "Engines whose events are followed.",
                total("cairn_router_engine_event_streams", "condition"),
            ),
            lines(
                "Silence of engines",
                "s",
                "Longest time since a batch of events. Engines without requests publish none.",
                each("cairn_router_engine_event_silence_seconds"),
            ),
            lines(
                "Batches and events of engines",
                "ops",
                "Batches by how they came, and events by kind.",
                per_second(
                    "cairn_router_engine_event_batches_total", "way", legend="{{way}} batches"
                ),
                per_second("cairn_router_engine_events_total", "kind", legend="{{kind}} events"),
            ),
            lines(
                "Events in trouble",
                "ops",
                "Missing batches, replays, messages that are no batches, engines that started "
                "again or were forgotten.",
                per_second("cairn_router_engine_event_gaps_total", legend="gaps"),
                per_second(
                    "cairn_router_engine_event_replays_total", "result", legend="replays {{result}}"
                ),
                per_second("cairn_router_engine_event_junk_total", legend="junk"),
                per_second("cairn_router_engine_restarts_total", legend="restarts"),
                per_second("cairn_router_engine_forgotten_total", legend="forgotten"),
            ),
            lines(
                "Blocks of engines that are known",
                "short",
                "Blocks whose hashes are known, held or not.",
                each("cairn_router_engine_known_blocks"),
            ),
            lines(
                "Blocks of engines that are in no answer",
                "ops",
                "By reason; evicted: the engine had more than engines.event_blocks.",
                per_second("cairn_router_engine_skipped_blocks_total", "reason"),
                per_second("cairn_router_engine_evicted_blocks_total", legend="evicted"),
            ),
            lines(
                "Prompts by what they are compared by",
                "reqps",
                "Tokens, or their text.",
                per_second("cairn_router_engine_prompts_total", "keys"),
            ),
            lines(
                "Prompts whose tokens an engine made",
                "reqps",
                "Setting engines.tokens.",
                per_second("cairn_router_tokenize_total", "result"),
            ),
        ],
    ),
    (
        "Events of nodes for other routers",
        [
            lines(
                "Published batches and blocks",
                "ops",
                "Each tier that a block enters or leaves counts.",
                per_second("cairn_zmq_batches_total", legend="batches"),
                per_second("cairn_zmq_blocks_total", "event", legend="blocks {{event}}"),
            ),
            lines(
                "Readers and namespaces",
                "short",
                "Skipped namespaces have keys that are no engine's own hashes.",
                total("cairn_zmq_readers", legend="readers"),
                total("cairn_zmq_namespaces", "condition", legend="namespaces {{condition}}"),
            ),
            lines(
                "Streams in trouble",
                "ops",
                "Batches that a reader did not get, beginnings by cause, replays, bad requests.",
                per_second("cairn_zmq_dropped_batches_total", legend="dropped"),
                per_second("cairn_zmq_beginnings_total", "cause", legend="began: {{cause}}"),
                per_second("cairn_zmq_replays_total", "outcome", legend="replay {{outcome}}"),
                per_second("cairn_zmq_bad_requests_total", legend="bad requests"),
            ),
            lines(
                "Kept for replays",
                "bytes",
                "Memory of the batches that are kept.",
                each("cairn_zmq_kept_bytes"),
            ),
            lines(
                "Batches kept for replays",
                "short",
                "events.memory bounds them.",
                each("cairn_zmq_kept_batches"),
            ),
        ],
    ),
    (
        "vLLM with the connector",
        [
            lines(
                "Found share of blocks",
                "percentunit",
                "Blocks that the node had, of those that the connector asked for.",
                share(
                    "cairn_vllm_matched_blocks_total",
                    "cairn_vllm_lookup_blocks_total",
                    legend="found",
                ),
            ),
            lines(
                "Look-ups",
                "ops",
                "Questions to the node, those without an answer in time, and those given up early "
                "because computing would be faster. Shortened: a draft needs a further block.",
                engine("lookups", "all"),
                engine("lookup_failures", "failed"),
                engine("late_lookups", "late"),
                engine("draft_shortened_lookups", "shortened"),
                engine("probes", "probes"),
            ),
            lines(
                "Mean time of look-ups, loads and saves",
                "s",
                "In the background. Saves: seconds a second.",
                mean("lookup_seconds", "lookups", "look-up"),
                mean("load_seconds", "loads", "load"),
                engine("save_seconds", "saving"),
            ),
            lines(
                "Loaded and stored bytes",
                "Bps",
                "Verified bytes from the node, and bytes that it took.",
                engine("loaded_bytes", "loaded"),
                engine("saved_bytes", "stored"),
            ),
            lines(
                "Loads",
                "ops",
                "All, and those given up early because computing is faster.",
                engine("loads", "all"),
                engine("late_loads", "late"),
            ),
            lines(
                "Blocks of loads and saves",
                "ops",
                "Failed ones were computed, or not taken. Dropped: no room in save_buffer.",
                engine("loaded_blocks", "loaded"),
                engine("device_loaded_blocks", "loaded from a GPU"),
                engine("failed_load_blocks", "not loaded"),
                engine("saved_blocks", "stored"),
                engine("failed_save_blocks", "not stored"),
                engine("dropped_save_blocks", "dropped"),
            ),
            lines(
                "Requests that compute although they could load",
                "ops",
                "Computing is faster: they did not ask, or did not take all of an answer.",
                engine("unasked_requests", "did not ask"),
                engine("unasked_late_requests", "answers take too long"),
                engine("untaken_hits", "answers not taken"),
                engine("untaken_blocks", "blocks not taken"),
            ),
            lines(
                "Requests without a right key",
                "ops",
                "All, and those because of their LoRA adapter; blocks not stored for that.",
                engine("bypassed_requests", "all"),
                engine("unread_adapter_requests", "adapter unread"),
                engine("changed_adapter_requests", "adapter changed"),
                engine("changed_adapter_blocks", "blocks"),
            ),
            table(
                "Exceptions of the connector",
                "In the last day. It caught them; each is a bug.",
                (
                    "Exceptions",
                    "short",
                    "sum by (pod, instance) (increase(cairn_vllm_internal_errors_total[1d]))",
                ),
            ),
        ],
    ),
    ("Calls", shared.calls(ROUTER)),
    ("Processes", shared.process(ROUTER)),
]
