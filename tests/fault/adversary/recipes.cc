#include "tests/fault/adversary/recipes.h"

#include <span>

namespace cairn::fault {
namespace {

// The bounds of honest clients: share of calls that succeed, 99th percentile as a multiple of the
// yardstick's. They are generous: two cores serve the node, the honest and the hostile clients.
constexpr double kAll = 0.995;
constexpr double kMost = 0.97;  // Where the node refuses a few calls for a moment.

// At a lone node, and at the nodes of a cluster.
const Recipe kNodesRecipes[] = {
    {"row_floods", "Fetches of 16,384 groups of rows, and of rows that cannot be: right or refused",
     RowFloods, kAll, 10},
    {"colliding_keys", "Keys that once collided for every seed: cost what others cost",
     CollidingKeys, kAll, 10},
    {"expiring_leases", "Leases and reservations that end while they are used", ExpiringLeases,
     kAll, 10},
    {"many_groups", "Reserves in a layout of 65,535 groups: cost of the order of their bytes",
     ManyGroups, kAll, 10},
    {"namespace_flood", "Namespaces without end: the flooder is refused, others are not",
     NamespaceFlood, kAll, 10},
    {"squatting", "Reservations of 10 minutes on others' keys: the first commit wins", Squatting,
     kAll, 10},
    {"idle_pushes", "1,100 Push streams that say nothing: others are served", IdlePushes, kAll, 10},
    {"idle_watches", "64 watchers that do not read: bounded memory", IdleWatches, kAll, 10},
    {"slow_readers", "32 fetches whose readers stop after one frame", SlowReaders, kAll, 10},
    {"slow_admin", "300 slow connections to the admin port: /livez answers", SlowAdmin, kAll, 10},
    {"wire_noise", "Random bytes on both ports", WireNoise, kAll, 10},
};

const Recipe kNodeRecipes[] = {
    // ---- Lookups ----
    {"duplicate_keys", "Leases over one key 65,536 times: cheap to end, and nothing of them stays",
     DuplicateKeys, kAll, 10},
    {"huge_lookups", "One fetch of 65,535 layers, thousands of times: bounded memory", HugeLookups,
     kAll, 10},
    {"pool_floods", "The largest questions over pools, and blocks in pools that are not theirs",
     PoolFloods, kAll, 10},
    {"root_chains", "A match over thousands of roots that were never linked: linear", RootChains,
     kAll, 10},
    {"hint_floods", "Hints for 65,536 blocks that are not there", HintFloods, kAll, 10},
    // ---- Namespaces and layouts ----
    {"ladder_bomb", "A small part whose layout declares terabytes: no memory for what is declared",
     LadderBomb, kAll, 10},
    {"heavy_namespaces", "Namespaces of megabytes each: bounded memory and time", HeavyNamespaces,
     kAll, 10},
    {"salt_probe", "Asking for a namespace with another salt: the stored one is not told",
     SaltProbe, kAll, 10},
    {"parts_of_one_key", "4,096 parts of one block, reserved again and again", PartsOfOneKey, kAll,
     10},
    {"many_parts", "Blocks of 1,024 parts through the disk: all of them come back", ManyParts,
     kMost, 20, true},
    // ---- Writes ----
    {"same_node_squatting", "The same by shared memory, without any deadline", SameNodeSquatting,
     kAll, 10},
    {"flush_loop", "A stranger flushes in a loop: the write budget holds", FlushLoop, kMost, 20,
     true},
    {"second_tenant", "The first block of a second tenant: evicts at most two arena segments",
     SecondTenant, kMost, 20, true},
    // ---- Connections ----
    {"session_floods", "200 idle sessions", SessionFloods, kAll, 10},
    {"traced_failures",
     "Traced failing calls while nobody reads the log: lines are lost, not calls", TracedFailures,
     kAll, 10},
    // ---- The node's machine ----
    {"hello_lies", "Hellos with made-up tokens, versions and lengths: refused", HelloLies, kAll,
     10},
    {"hello_flood", "300 tenants of same-node sessions: their names are given back", HelloFlood,
     kAll, 10},
    {"ring_lies", "Nonsense in the ring: breaks the liar's session only", RingLies, kAll, 10},
    {"lent_writes", "Writes into lent memory under its readers: nobody uses a wrong byte",
     LentWrites, kAll, 10},
    {"tenants_come_and_go", "Tenants map what they are given: no byte of another one",
     TenantsComeAndGo, kMost, 15},
    {"segment_turns", "Two tenants take turns and never unmap: bounded memory", SegmentTurns, kMost,
     15},
    {"drop_and_bump_races", "Matches that race with drops and bumps: no lease stays",
     DropAndBumpRaces, kAll, 10},
    {"stopped_holder", "A stopped client of a dropped tenant: only what it holds stays",
     StoppedHolder, kMost, 15},
    {"killed_holders", "kill -9 of clients that hold leases, rooms and lent memory", KilledHolders,
     kAll, 10},
    // ---- Restarts ----
    {"stranger_admin", "Drops and bumps over loopback, as the node is by default: refused",
     StrangerAdmin, kMost, 20, true},
    {"kill_nine", "kill -9 of the node under load", KillNine, kMost, 20, true},
    {"other_capacities", "Restarts with more and less room, by SIGTERM and kill -9",
     OtherCapacities, kMost, 20, true},
    {"growing_disk", "64 times the disk capacity with 1,024 descriptors", GrowingDisk, kMost, 20,
     true},
};

// Eight processes share what is often two cores, so these bounds are of the same kind.
const Recipe kClusterRecipes[] = {
    // ---- Requests ----
    {"large_bodies", "Bodies of 8 MB with a short prompt: in the account, others are served",
     LargeBodies, kMost, 10},
    {"stalled_bodies", "40 bodies of 8 MB whose last byte never comes: others are served",
     StalledBodies, kMost, 10},
    {"long_texts", "Texts of megabytes to tokenise: others' small ones do not wait", LongTexts,
     kAll, 10},
    {"beyond_context", "Prompts that no engine can take: refused, and others are not shed",
     BeyondContext, kAll, 10},
    {"wrong_fields", "Deep, huge and broken JSON: an error of the caller", WrongFields, kAll, 10},
    {"broken_keys", "Wrong, missing and long API keys: 401", BrokenKeys, kAll, 10},
    {"loud_priorities", "Long prompts with priority 10: no others wait for them", LoudPriorities,
     kAll, 10},
    {"hasty_asks", "Requests with deadlines of milliseconds at router and worker", HastyAsks, kAll,
     10},
    {"made_up_tenants", "Each request in another tenant's name: bounded memory", MadeUpTenants,
     kAll, 10},
    {"query_floods", "Queries of 200,000 tokens and 4,096 hashes", QueryFloods, kAll, 10},
    {"worker_crowd", "One tenant fills a worker's queue: others are served", WorkerCrowd, kAll, 10},
    {"slow_answers", "Readers of long streams that stop after the first bytes", SlowAnswers, kAll,
     10},
    {"cancelled_streams", "Streams whose callers go: nothing of them stays", CancelledStreams, kAll,
     10},
    // ---- Edges ----
    {"http_floods", "Connections without an end, and heads that never end: others are served",
     HttpFloods, kAll, 10},
    {"picker_crowd", "40 streams of a gateway with bodies of 3 MB that reads nothing", PickerCrowd,
     kMost, 10},
    {"slow_admins", "Slow connections to the admin ports of routers and workers", SlowAdmins, kAll,
     10},
    // ---- Members ----
    {"made_up_holders", "Matches that name nodes which do not exist: nobody remembers them",
     MadeUpHolders, kAll, 10},
    {"hasty_matches", "Matches and Locates of a millisecond: no member is given up for them",
     HastyMatches, kAll, 10},
    {"locate_floods", "Locates of 65,536 keys, without a session", LocateFloods, kAll, 10},
    {"member_lies", "Calls of made-up members, and in the name of true ones: nobody joins",
     MemberLies, kAll, 10},
    {"short_lives", "Opening a namespace with a life of a second: no block is hidden", ShortLives,
     kAll, 10},
    {"disk_rows", "Rows of a few bytes of blocks on disk, layer by layer: right", DiskRows, kAll,
     10},
    {"disk_leases", "A lease on more blocks than memory holds: others store", DiskLeases, kAll, 10},
};

std::vector<const Recipe*> BothOf(std::span<const Recipe> first, std::span<const Recipe> second) {
  std::vector<const Recipe*> recipes;
  for (const Recipe& recipe : first) recipes.push_back(&recipe);
  for (const Recipe& recipe : second) recipes.push_back(&recipe);
  return recipes;
}

}  // namespace

std::vector<const Recipe*> NodeRecipes() { return BothOf(kNodesRecipes, kNodeRecipes); }

std::vector<const Recipe*> ClusterRecipes() { return BothOf(kClusterRecipes, kNodesRecipes); }

}  // namespace cairn::fault
