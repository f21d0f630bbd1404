"""Whether the nodes of a cluster see each other, find each other's blocks and move them."""

import shared
from panels import NONE_ALLOWED, lines, stat, table
from queries import WHERE, count, each, last_hour, per_second, total

UID, TITLE = "cairn-cluster", "Cluster and links"
STATES = ["live", "absent", "other_view", "other_bumps", "skipped", "sent_wrong"]


def members(state):
    return f'max by (namespace, pod, instance) (cairn_cluster_members{{state="{state}"}})'


ROWS = [
    (
        "Do they see each other",
        [
            shared.MEMBERS,
            stat(
                "Absent members",
                "short",
                "Addresses of discovery where no member answers, the most that any node misses.",
                each('max(cairn_cluster_members{state="absent"})'),
                NONE_ALLOWED,
            ),
            stat(
                "Members that disagree",
                "short",
                "They see other members, or know other bumps of namespaces.",
                each('max(cairn_cluster_members{state=~"other_view|other_bumps"})'),
                NONE_ALLOWED,
            ),
            stat(
                "Members that sent wrong bytes",
                "short",
                "They are not asked for ten minutes. Look for broken memory on their machines.",
                each('max(cairn_cluster_members{state="sent_wrong"})'),
                NONE_ALLOWED,
            ),
            stat(
                "Nodes without discovery",
                "short",
                "Their last question to discovery was not answered.",
                count("cairn_cluster_discovery_up == 0"),
                NONE_ALLOWED,
            ),
            stat(
                "Replaced nodes",
                "short",
                "A newer process has the id of the node, which keeps out of the cluster.",
                total("cairn_cluster_replaced"),
                NONE_ALLOWED,
            ),
            stat(
                "Links that broke, last hour",
                "short",
                "Links between GPUs that ended because something went wrong.",
                last_hour("cairn_link_broken_total"),
                NONE_ALLOWED,
            ),
            table(
                "Members by node",
                "What each node knows of the others. The cells count other members.",
                *((state, "short", members(state)) for state in STATES),
            ),
            lines(
                "Members by state",
                "short",
                "The most that any node has in the state.",
                ("{{state}}", "max by (state) (cairn_cluster_members)"),
            ),
            lines(
                "Discovery",
                "short",
                "1: its last question was answered.",
                each("cairn_cluster_discovery_up"),
            ),
        ],
    ),
    (
        "What members have of each other",
        [
            lines(
                "Blocks of other members",
                "ops",
                "Found: others said that they have them. Read: they came. Failed: no member could "
                "give them.",
                per_second("cairn_cluster_found_blocks_total", legend="found"),
                per_second("cairn_cluster_read_blocks_total", legend="read"),
                per_second("cairn_cluster_failed_reads_total", legend="failed"),
            ),
            lines(
                "Bytes between members",
                "Bps",
                "Over gRPC.",
                per_second("cairn_cluster_bytes_total", "direction"),
            ),
            lines(
                "Reads that were refused as too many",
                "ops",
                "Too many members took blocks at the same time.",
                per_second("cairn_cluster_busy_total", "direction"),
            ),
            lines(
                "Reads with wrong bytes",
                "ops",
                "The bytes were not those of the block, and were not used.",
                per_second("cairn_cluster_wrong_reads_total", legend="wrong"),
            ),
        ],
    ),
    (
        "Directory",
        [
            lines(
                "Waymarks",
                "short",
                "Held: of the nodes' own blocks. Directory: of the blocks that each node keeps "
                "places of for the others.",
                total("cairn_cluster_waymarks", legend="held"),
                total("cairn_cluster_directory_waymarks", legend="directory"),
            ),
            lines(
                "Memory of the directory",
                "bytes",
                "By node. cluster.memory bounds it.",
                each("cairn_cluster_directory_bytes"),
            ),
            lines(
                "Forgotten waymarks",
                "ops",
                "The directory's memory was used up. Raise cluster.memory.",
                per_second("cairn_cluster_directory_forgotten_total", legend="forgotten"),
            ),
            lines(
                "Announcements",
                "ops",
                "Messages to owners, and those that were not taken.",
                per_second("cairn_cluster_announcements_total", legend="sent"),
                per_second("cairn_cluster_failed_announcements_total", legend="failed"),
            ),
            lines(
                "Members that do not know all yet",
                "short",
                "Members that were not yet told all that the node holds.",
                each("cairn_cluster_announcing_members"),
            ),
            lines(
                "Exchanges of bumps",
                "ops",
                "Times that a node told another one which namespaces were dropped.",
                per_second("cairn_cluster_bump_exchanges_total", legend="exchanges"),
            ),
        ],
    ),
    (
        "Links between GPUs",
        [
            lines(
                "Nodes that can have links",
                "short",
                "0: NCCL or a GPU is missing.",
                each("cairn_link_up"),
            ),
            lines(
                "Links by state",
                "short",
                "One for each direction. Abandoned: the library hangs in it for good.",
                total("cairn_links", "state"),
                total("cairn_link_paused_members", legend="members left alone"),
            ),
            lines(
                "Blocks over links",
                "ops",
                "From GPU to GPU.",
                per_second("cairn_link_blocks_total", "direction"),
            ),
            lines(
                "Bytes over links",
                "Bps",
                "With what fills up between parts.",
                per_second("cairn_link_bytes_total", "direction"),
            ),
            lines(
                "Blocks that did not come over a link",
                "ops",
                "By reason; fallback: they came over gRPC after all; wrong: with wrong bytes.",
                per_second("cairn_link_failures_total", "reason"),
                per_second("cairn_link_fallbacks_total", legend="fallback"),
                per_second("cairn_link_wrong_blocks_total", legend="wrong"),
            ),
            lines(
                "Lent blocks by outcome",
                "ops",
                "Blocks that a node laid out for other members, or should have.",
                per_second("cairn_link_lends_total", "outcome"),
            ),
            lines(
                "Links made and broken",
                "ops",
                "Broken: ended because something went wrong.",
                per_second("cairn_link_opened_total", legend="opened"),
                per_second("cairn_link_broken_total", legend="broken"),
            ),
            lines(
                "Buffers of links",
                "bytes",
                "Memory of GPUs for blocks on their way.",
                (f"{WHERE} in use", "cairn_link_buffer_used_bytes"),
                (f"{WHERE} all", "cairn_link_buffer_bytes"),
            ),
        ],
    ),
]
