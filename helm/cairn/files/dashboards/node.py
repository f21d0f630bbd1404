"""Whether a node finds what it is asked for, and what its memory and its disk do."""

import shared
from panels import ANY, NONE_ALLOWED, above, heat, lines, stat
from queries import NODE, each, last_hour, per_second, quantile, share, total

UID, TITLE = "cairn-node", "Node and disk"

USES = (
    "3600 * sum by (group) (cairn_placement_uses) / sum by (group) (cairn_placement_block_seconds)"
)


def used(tier):
    only = f'{{tier="{tier}"}}'
    return each(f"max(cairn_tier_used_bytes{only} / (cairn_tier_capacity_bytes{only} > 0))", "used")


ROWS = [
    (
        "Is it worth its memory",
        [
            shared.HIT_RATIO,
            stat(
                "Prefill time saved",
                "s",
                "Seconds a second, by the prefill speed that clients name with each match.",
                per_second("cairn_prefill_seconds_saved_total"),
                ANY,
            ),
            stat(
                "Fullest host tier",
                "percentunit",
                "A full host tier is normal for a cache.",
                used("host"),
                ANY,
            ),
            stat(
                "Fullest disk tier",
                "percentunit",
                "Above disk.high_water a node copies only blocks that are asked for twice.",
                used("disk"),
                ANY,
            ),
            stat(
                "Not yet on disk",
                "bytes",
                "Committed bytes that a kill -9 would lose.",
                total("cairn_unflushed_bytes"),
                ANY,
            ),
            stat(
                "Failed reads and writes, last hour",
                "short",
                "Of any tier. The blocks are misses. Look at the log of the kernel.",
                last_hour("cairn_tier_io_errors_total"),
                NONE_ALLOWED,
            ),
            stat(
                "Copies that failed or stalled, last hour",
                "short",
                "Blocks that stay in memory only. A full file system is the usual cause.",
                last_hour("cairn_failed_copies_total", "cairn_copy_stalls_total"),
                NONE_ALLOWED,
            ),
            stat(
                "Calls refused now",
                "reqps",
                "Calls a second that nodes refused before they did any work for them.",
                per_second("cairn_rpc_rejected_total", of=NODE),
                above(0.1, 1),
                "cairn-security",
            ),
            lines(
                "Looked-up tokens by tier",
                "cps",
                "Where looked-up prompt tokens were found. none: a miss.",
                per_second("cairn_lookup_tokens_total", "tier"),
            ),
            shared.LOOKED_UP,
            lines(
                "Tokens saved",
                "cps",
                "Prompt tokens that nodes found, so that no worker had to compute them.",
                per_second("cairn_tokens_saved_total", legend="tokens"),
            ),
            heat(
                "Matched prefix",
                "Tokens that one match found.",
                "cairn_matched_prefix_tokens",
                "short",
            ),
            lines(
                "Misses by reason",
                "ops",
                "Blocks that were asked for with a lease and not served.",
                per_second("cairn_miss_blocks_total", "reason"),
            ),
            lines(
                "Matches over pools by what they lack",
                "ops",
                "The pool that has not enough for a longer length needs all blocks, the tail or "
                "one. none: no pool is in the way.",
                per_second("cairn_pool_limits_total", "needs"),
            ),
            lines(
                "Hints for placement",
                "ops",
                "Matches whose client said what the conversation does next.",
                per_second("cairn_hinted_matches_total", "next"),
            ),
            lines(
                "Prefetched blocks by outcome",
                "ops",
                "Blocks that hints brought to the host tier.",
                per_second("cairn_prefetched_blocks_total", "outcome"),
            ),
        ],
    ),
    ("Calls", shared.calls(NODE)),
    (
        "Tiers",
        [
            lines(
                "Used bytes by tier",
                "bytes",
                "Rounding included, and the capacity.",
                total("cairn_tier_used_bytes", "tier"),
                total("cairn_tier_capacity_bytes", "tier", legend="{{tier}} capacity"),
            ),
            lines("Blocks by tier", "short", "Complete ones.", total("cairn_tier_blocks", "tier")),
            shared.MOVED,
            lines(
                "Speed of reads by tier",
                "Bps",
                "Of recent reads, the slowest node. Fetches are planned with it.",
                ("{{tier}}", "min by (tier) (cairn_tier_read_bytes_per_second)"),
            ),
            lines(
                "Blocks that left a tier",
                "ops",
                "Evicted to make room, or over because their life was.",
                per_second("cairn_evicted_blocks_total", "tier", legend="evicted from {{tier}}"),
                per_second("cairn_expired_blocks_total", legend="expired"),
            ),
            lines(
                "Age of evicted blocks",
                "s",
                "Since their last use, the mean. A node that is large enough evicts old blocks.",
                share("cairn_evicted_age_seconds_total", "cairn_evicted_blocks_total", "tier"),
            ),
            lines(
                "Evicted bytes by tier",
                "Bps",
                "Bytes of blocks that left the tier to make room.",
                per_second("cairn_evicted_bytes_total", "tier"),
            ),
            lines(
                "Failed reads and writes by tier",
                "ops",
                "The blocks are misses, and nothing wrong is served.",
                per_second("cairn_tier_io_errors_total", "tier"),
            ),
            lines(
                "Blocks between memory and disk",
                "ops",
                "Promoted: copied to memory. Demoted: gone from memory, while the disk keeps them.",
                per_second("cairn_promoted_blocks_total", legend="promoted"),
                per_second("cairn_demoted_blocks_total", legend="demoted"),
            ),
            lines(
                "Queue of moves",
                "short",
                "Moves between tiers that wait.",
                each("cairn_mover_queue_blocks"),
            ),
            lines(
                "Moves that were saved",
                "ops",
                "Merged: already waiting or in progress. Cancelled: no caller waited any more.",
                per_second("cairn_mover_merged_total", legend="merged"),
                per_second("cairn_mover_cancelled_total", legend="cancelled"),
            ),
            lines(
                "Blocks that fail their check",
                "ops",
                "Bad blocks found and removed. Anything but zero is worth a look at the hardware.",
                per_second("cairn_checksum_failures_total", legend="failures"),
            ),
            lines(
                "Bytes that ladders encode again",
                "Bps",
                "On their way to disk, before and after.",
                per_second("cairn_recoded_bytes_total", "form"),
            ),
        ],
    ),
    (
        "Disk",
        [
            lines(
                "Not yet on disk, by node",
                "bytes",
                "Committed bytes that a kill -9 would lose.",
                each("cairn_unflushed_bytes"),
            ),
            lines(
                "Blocks that were not copied",
                "ops",
                "By reason: the write budget was used up, tenants store faster than the disk "
                "writes, a second use is awaited, or the disk's codec cannot store them.",
                per_second("cairn_declined_copies_total", "reason"),
            ),
            lines(
                "Copies in trouble",
                "ops",
                "Late: written or given up later than disk.flush_after. Failed: given up. "
                "Stalled: none ended for 30 s.",
                per_second("cairn_late_copies_total", legend="late"),
                per_second("cairn_failed_copies_total", legend="failed"),
                per_second("cairn_copy_stalls_total", legend="stalled"),
            ),
            lines(
                "Time of an access to the device",
                "s",
                "The mean, with its wait for others. sync: a round that makes writes durable.",
                share("cairn_disk_io_seconds_total", "cairn_disk_io_total", "io"),
            ),
            lines(
                "Accesses to the device",
                "ops",
                "Reads of blocks, writes of groups of them, and rounds that make writes durable.",
                per_second("cairn_disk_io_total", "io"),
            ),
            lines(
                "Segment files",
                "short",
                "Of the disk tier; free ones have no stored byte.",
                total("cairn_disk_segments", legend="all"),
                total("cairn_disk_free_segments", legend="free"),
            ),
            lines(
                "Work in the background",
                "Bps",
                "Moved: written a second time to free a segment file. Scrubbed: verified.",
                per_second("cairn_disk_moved_bytes_total", legend="moved"),
                per_second("cairn_disk_scrubbed_bytes_total", legend="scrubbed"),
            ),
            lines(
                "Damage on disk",
                "short",
                "In the last hour: extents found damaged; at the start of a node, damaged records, "
                "and extents dropped because disk.capacity became smaller.",
                last_hour("cairn_disk_scrub_failures_total", legend="damaged"),
                last_hour("cairn_disk_corrupt_records_total", legend="records"),
                last_hour("cairn_disk_trimmed_extents_total", legend="trimmed"),
            ),
        ],
    ),
    (
        "Memory",
        [
            *shared.memory(
                "cairn",
                "blocks are evicted (host, index), calls wait (rpc, transfers, fetch_headers) "
                "or are refused",
            ),
            lines(
                "Memory that waits or is kept",
                "bytes",
                "Hinted: hints protect it. Retired: same-node clients still map it. Reserved: not "
                "committed yet.",
                total("cairn_hinted_bytes", legend="hinted"),
                total("cairn_retired_bytes", legend="retired"),
                total("cairn_reserved_bytes", legend="reserved"),
            ),
            lines(
                "Stored bytes by tenant",
                "bytes",
                "Each block once. other: all but the 32 largest tenants of each node.",
                total("cairn_tenant_bytes", "tenant"),
            ),
            lines(
                "Stored blocks by tenant",
                "short",
                "As above.",
                total("cairn_tenant_blocks", "tenant"),
            ),
            lines(
                "Room of tenants with limits",
                "bytes",
                "What they have, and the most that the policy lets them have, on all nodes.",
                total("cairn_tenant_room_bytes", "tenant", "tier"),
                total("cairn_tenant_limit_bytes", "tenant", "tier", legend="limit"),
            ),
            lines(
                "Refused for a tenant's limits",
                "ops",
                "No room: stores, and copies that were not made. Too fast: look-ups and stores.",
                per_second("cairn_over_tenant_limit_total", legend="no room"),
                per_second("cairn_over_tenant_pace_total", legend="too fast"),
            ),
            lines(
                "Index",
                "short",
                "Complete blocks, and blocks with parts missing.",
                total("cairn_index_entries", legend="complete"),
                total("cairn_incomplete_blocks", legend="incomplete"),
            ),
        ],
    ),
    (
        "Clients",
        [
            lines(
                "Leases, reservations, sessions",
                "short",
                "What clients hold.",
                total("cairn_leases", legend="leases"),
                total("cairn_reservations", legend="reservations"),
                total("cairn_sessions", legend="sessions"),
                total("cairn_namespaces", legend="namespaces"),
            ),
            lines(
                "Parts that became visible",
                "ops",
                "Commits of writers, and blocks that they announced before.",
                per_second("cairn_commits_total", legend="commits"),
                per_second("cairn_announced_blocks_total", legend="announced"),
            ),
            lines(
                "Leases and reservations that ran out",
                "ops",
                "Their client did not release or commit them in time.",
                per_second("cairn_expired_leases_total", legend="leases"),
                per_second("cairn_expired_reservations_total", legend="reservations"),
            ),
            lines(
                "Matches that wait for a writer",
                "short",
                "Now; and how many began to wait in a second.",
                total("cairn_waiting_matches", legend="now"),
                per_second("cairn_match_waits_total", legend="began"),
            ),
            lines(
                "How long matches wait for a writer",
                "s",
                "Mean of those that waited.",
                share("cairn_match_wait_seconds_total", "cairn_match_waits_total", legend="mean"),
            ),
            lines(
                "Rows sent",
                "ops",
                "Rows of one head that fetches of rows sent.",
                per_second("cairn_fetched_rows_total", legend="rows"),
            ),
            lines(
                "Bytes hashed to send rows",
                "Bps",
                "Bytes of slices of which rows were sent.",
                per_second("cairn_row_checked_bytes_total", legend="hashed"),
            ),
            lines(
                "Events lost by watchers",
                "ops",
                "The watcher was too slow.",
                per_second("cairn_events_dropped_total", legend="events"),
            ),
        ],
    ),
    (
        "Clients on the same machine",
        [
            lines(
                "Sessions",
                "short",
                "Open same-node sessions.",
                each("cairn_local_sessions"),
            ),
            lines(
                "Bytes held",
                "bytes",
                "Bytes that same-node sessions lease and reserve.",
                each("cairn_local_held_bytes"),
            ),
            lines(
                "Bytes read and written in place",
                "Bps",
                "They are part of the bytes moved.",
                per_second("cairn_local_bytes_total", "direction"),
            ),
            lines(
                "Connections by outcome",
                "ops",
                "Postponed: the process had no descriptor or memory for one, and takes it later.",
                per_second("cairn_local_connections_total", "outcome"),
            ),
            heat(
                "Time of same-node calls",
                "From a call's way out of its ring to its answer. A locate may wait for the disk "
                "or for another node.",
                "cairn_local_call_seconds",
            ),
            lines(
                "Time of same-node calls, p99",
                "s",
                "The slowest hundredth of each call takes longer.",
                quantile(0.99, "cairn_local_call_seconds", "call", legend="{{call}}"),
            ),
            lines(
                "Descriptors",
                "ops",
                "Taken out of rings, and those of segments and chunks of GPUs that were given.",
                per_second("cairn_local_descriptors_total", legend="taken"),
                per_second("cairn_local_segments_total", legend="segments"),
                per_second("cairn_local_chunks_total", legend="chunks"),
            ),
            lines(
                "Wrong descriptors",
                "ops",
                "They were malformed or not permitted.",
                per_second("cairn_local_rejected_descriptors_total", legend="rejected"),
            ),
        ],
    ),
    (
        "Pools and placement",
        [
            lines(
                "Blocks of pools",
                "short",
                "Chained: of pools whose blocks follow each other. Alone: windows and states.",
                total("cairn_pool_blocks", "kind"),
            ),
            lines(
                "Bytes of pools",
                "bytes",
                "Each block once.",
                total("cairn_pool_bytes", "kind"),
            ),
            lines(
                "Blocks by group",
                "short",
                "Groups of the eviction policy cairn, remembered blocks included. lru learns none.",
                total("cairn_placement_blocks", "group"),
            ),
            lines(
                "Uses per block and hour",
                "short",
                "What keeping a block of the group is worth. Empty if the policy learns nothing.",
                ("{{group}}", USES),
            ),
        ],
    ),
    (
        "GPUs",
        [
            lines(
                "GPUs that work",
                "short",
                "1 as long as the GPU was not lost. 0 without a name: there is none, although the "
                "settings ask for one.",
                ("{{pod}} {{instance}} {{device}}", "cairn_device_up"),
            ),
            lines(
                "Memory of GPUs",
                "bytes",
                "Taken by the device tier; used by blocks; pinned in the host tier.",
                total("cairn_device_memory_bytes", "device", legend="taken {{device}}"),
                total("cairn_device_used_bytes", "device", legend="used {{device}}"),
                total("cairn_device_pinned_bytes", legend="pinned"),
            ),
            lines(
                "Chunks that sessions have",
                "short",
                "Chunks of the GPU that same-node sessions map.",
                total("cairn_device_shared_chunks", "device"),
            ),
            lines(
                "Shortages of GPUs",
                "ops",
                "The GPU had no memory left, or the machine refused to pin memory.",
                per_second("cairn_device_shortages_total", "device", legend="no memory {{device}}"),
                per_second("cairn_device_pin_refusals_total", legend="not pinned"),
            ),
            lines(
                "Bytes copied through pinned buffers",
                "Bps",
                "They were not pinned themselves, which costs a copy.",
                per_second("cairn_device_detour_bytes_total", "device"),
            ),
            lines(
                "Blocks lost with a GPU",
                "ops",
                "Copies that lay on a GPU that was lost.",
                per_second("cairn_lost_blocks_total", legend="lost"),
            ),
        ],
    ),
    ("Processes", shared.process(NODE)),
]
