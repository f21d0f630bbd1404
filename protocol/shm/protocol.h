#pragma once
// The same-node protocol, version 1: what client and node write into the ring and send over the
// Unix socket. This file has the bytes, and docs/inside/formats/local.md explains them.
//
// Plain structs of fixed size, little-endian, without padding. Each side copies what it reads out
// of shared memory once, and looks only at the copy. The checks are in decode.h.

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace cairn::shm {

inline constexpr uint16_t kVersion = 1;

// ---- The ring's memory: one memfd per session, mapped by both. ----
//
//   0     RingHeader: one cache line per counter
//   384   submissions[entries], 64 bytes each
//   ...   completions[entries], 64 bytes each
//   ...   scratch, from the next 4 KiB on: keys in, places out. The client says in each
//         descriptor which part of it to use.

inline constexpr uint32_t kCacheLine = 64;
inline constexpr uint32_t kRingHeaderBytes = 6 * kCacheLine;
inline constexpr uint32_t kMaxEntries = 4096;
// The ring without its scratch area is one page of 4 KiB.
inline constexpr uint32_t kDefaultEntries = 16;
inline constexpr uint32_t kMaxScratchBytes = 64u << 20;
inline constexpr uint32_t kKeyBytes = 32;

// The shape of a ring. The node sends it once, in Welcome. Neither side reads it from shared
// memory.
struct RingShape {
  uint32_t entries = 0;        // Entries of each queue; a power of two, 1 to kMaxEntries.
  uint32_t scratch_bytes = 0;  // A multiple of 4096, 4096 to kMaxScratchBytes.

  constexpr uint64_t submissions_at() const { return kRingHeaderBytes; }
  constexpr uint64_t completions_at() const { return submissions_at() + uint64_t{entries} * 64; }
  constexpr uint64_t scratch_at() const {
    return (completions_at() + uint64_t{entries} * 64 + 4095) / 4096 * 4096;
  }
  constexpr uint64_t bytes() const { return scratch_at() + scratch_bytes; }
  constexpr bool valid() const {
    return entries >= 1 && entries <= kMaxEntries && (entries & (entries - 1)) == 0 &&
           scratch_bytes >= 4096 && scratch_bytes <= kMaxScratchBytes && scratch_bytes % 4096 == 0;
  }
};

enum class Op : uint8_t {
  kMatch = 1,  // input: keys. output: PlaceEntry[] with kPlaces. body: fingerprint. argument: float
               // bits, tokens/s of prefill.
  // input: keys. output: one byte per key: 0 absent, 1 host, 2 disk. body: fingerprint.
  kExists = 2,
  kLocate = 3,  // output: PlaceEntry[]. body: LocateBody. argument: milliseconds to wait for blocks
                // that are on their way; 0: none.
  kRelease = 4,  // input: u64 lease ids.
  kRenew = 5,    // body: LocateBody, lease only. OK while the lease lives: leases of this path have
                 // no deadline.
  kReserve = 6,  // input: ReserveEntry[]. output: Grant[]. body: fingerprint.
  kCommit = 7,   // input: u64 reservation ids. output: one StatusCode byte per id.
  kAbort = 8,    // input: u64 reservation ids.
  kReport = 9,   // body: LocateBody with one block whose bytes failed their hash here: the node
                 // looks for itself. No output.
  // input: PoolQuestion, then a key for each unit. output: PoolAnswer, then the bits of the
  // restorable lengths, if they are wanted. body: fingerprint. argument: as kMatch's. Places are
  // asked for with kLocate. Flags: kNoLease, kNextUse.
  kMatchPools = 10,
};
inline constexpr uint8_t kLastOp = 10;

enum SubmissionFlag : uint8_t {
  kNoLease = 1,   // kMatch, kMatchPools: only ask. No lease, no places, no effect on eviction.
  kPlaces = 2,    // kMatch: also write where the parts lie, as far as `output` reaches.
  kNextUse = 12,  // kMatch, kMatchPools: two bits with the number of a NextUse.
};
inline constexpr int kNextUseShift = 2;

// A range of the scratch area. Offsets are multiples of 8.
struct Area {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

struct LocateBody {
  uint64_t lease = 0;
  uint32_t block_begin = 0, block_end = 0;  // end 0: all.
  uint64_t reserved[2] = {};                // 0.
};

struct Submission {
  uint64_t cookie = 0;  // Comes back in the completion.
  uint8_t op = 0;
  uint8_t flags = 0;
  uint16_t reserved = 0;  // 0.
  uint32_t argument = 0;
  Area input;
  Area output;
  uint8_t body[32] = {};  // A fingerprint, or a LocateBody.
};
static_assert(sizeof(Submission) == 64 && sizeof(LocateBody) == 32);

enum CompletionFlag : uint8_t {
  kText = 1,  // `code` is an error, and `output` holds `count` bytes that say why.
};

struct Completion {
  uint64_t cookie = 0;
  uint8_t op = 0;
  uint8_t code = 0;  // absl::StatusCode of the whole call.
  // kMatch: MissReason of block `matched`; 0: all matched. kMatchPools: of the limiting pool's.
  uint8_t miss_reason = 0;
  uint8_t flags = 0;
  uint32_t count = 0;    // Entries written to `output`.
  uint64_t lease = 0;    // kMatch, kMatchPools; 0: none.
  uint64_t bytes = 0;    // kMatch, kMatchPools: stored bytes of the matched blocks.
  uint32_t matched = 0;  // kMatch, kMatchPools: blocks.
  // kMatch, kLocate: how many blocks, counted from the first requested one, have all places in
  // `output`.
  uint32_t located = 0;
  double estimated_seconds = 0;  // kMatch, kMatchPools: to fetch all of it. 0: unknown.
  uint64_t reserved[2] = {};
};
static_assert(sizeof(Completion) == 64);

enum class PlaceState : uint8_t {
  kHere = 0,       // Readable now, and until the lease is released.
  kPending = 1,    // On its way from disk: ask again.
  kFailed = 2,     // A miss; `reason` says why.
  kElsewhere = 3,  // The node has it where this session cannot read it: fetch it over gRPC with the
                   // same session and lease.
};

enum PlaceFlag : uint8_t {
  kLent = 1,  // In a segment that writers of the tenant can still change: copy it, then verify the
              // copy.
  // In a chunk of a GPU, whose id `segment` is. Only for sessions that said Devices. All sessions
  // of the tenant can write there: copy the bytes, then verify the copy.
  kOnDevice = 2,
};

// Where one part of one block lies. The bytes are the stored part (docs/inside/formats/part.md),
// and its header has the offsets and the XXH3 of the slices.
struct PlaceEntry {
  uint64_t offset = 0;   // In the segment.
  uint32_t segment = 0;  // Id; 0 unless kHere.
  uint32_t bytes = 0;    // Size of the part, including its header.
  uint32_t block = 0;    // Counted from the first block of the lease.
  uint16_t layer_begin = 0, layer_end = 0, head_begin = 0, head_end = 0;  // The part's rectangle.
  uint8_t state = 0;                                                      // PlaceState.
  uint8_t tier = 0;    // TierCode of the tier where the match found it.
  uint8_t reason = 0;  // MissReason, kFailed only.
  uint8_t flags = 0;   // PlaceFlag.
};
static_assert(sizeof(PlaceEntry) == 32);

inline constexpr uint32_t kMaxPoolEntries = 32;

struct PoolNeedEntry {
  uint32_t pool = 0;
  uint32_t tail_tokens = 0;
  uint32_t proof_blocks = 0;
  uint32_t reserved = 0;  // 0.
};

// As JointQuestion of proto/cairn/v1/cache.proto.
struct PoolQuestion {
  uint64_t most_tokens = 0;
  uint32_t step_tokens = 0;
  uint32_t pools = 0;         // Entries in use, 1 to kMaxPoolEntries. The others are 0.
  uint32_t all = 0;           // 0 or 1.
  uint32_t reserved[3] = {};  // 0.
  PoolNeedEntry entries[kMaxPoolEntries] = {};
};
static_assert(sizeof(PoolQuestion) == 32 + 16 * kMaxPoolEntries);

struct PoolRunEntry {
  uint32_t pool = 0;
  uint32_t first_block = 0;
  uint32_t blocks = 0;
  uint32_t reserved = 0;
};

// As JointAnswer there.
struct PoolAnswer {
  static constexpr uint32_t kNoPool = UINT32_MAX;

  uint64_t restorable_tokens = 0;
  uint32_t runs = 0;  // Entries in use, 0 to kMaxPoolEntries.
  uint32_t limiting_pool = kNoPool;
  uint32_t bits_bytes = 0;  // Bytes of the bits, which follow.
  uint32_t reserved = 0;
  PoolRunEntry entries[kMaxPoolEntries] = {};
};
static_assert(sizeof(PoolAnswer) == 24 + 16 * kMaxPoolEntries);

struct ReserveEntry {
  uint8_t key[32] = {};
  uint8_t parent[32] = {};  // Read only with has_parent.
  uint64_t first_position = 0;
  uint64_t bytes = 0;  // Size of the part as stored, including its header.
  double compute_seconds = 0;
  uint16_t layer_begin = 0, layer_end = 0, head_begin = 0, head_end = 0;
  uint32_t has_parent = 0;  // 0 or 1.
  uint32_t reserved = 0;    // 0.
};
static_assert(sizeof(ReserveEntry) == 104);

struct Grant {
  uint64_t reservation = 0;
  uint64_t offset = 0;  // In the segment, which is mapped writable.
  uint32_t segment = 0;
  uint8_t code = 0;  // absl::StatusCode: 0 OK, 6 ALREADY_EXISTS (success for the caller), 8
                     // RESOURCE_EXHAUSTED: push it over gRPC.
  uint8_t reserved[3] = {};
};
static_assert(sizeof(Grant) == 24);

// ---- The socket: SOCK_SEQPACKET, one struct per message. ----

inline constexpr uint32_t kMagic = 0x4c4e5243;  // "CRNL"
inline constexpr size_t kMaxSegmentsPerMessage = 32;

enum class MessageType : uint16_t {
  kHello = 1,    // Client, first.
  kWelcome = 2,  // Node, first; with the ring's descriptor when code is 0.
  // Node, before a place or a grant names one of them; with their descriptors, in order.
  kSegments = 3,
  kGone = 4,      // Node: these segments hold nothing of the session any more. Unmap them.
  kClosing = 5,   // Node, last: why it stops serving the ring. Hang up.
  kDoorbell = 6,  // Client: there are submissions, and the node was asleep.
  // Client, at most once, if Welcome names chunk_bytes: the GPUs whose memory it can import.
  kDevices = 7,
  // Node, before a place names one of them; with their descriptors, in order. They stay the
  // session's until it ends.
  kChunks = 8,
};

struct MessageHeader {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t type = 0;
};

struct Hello {
  MessageHeader header;
  uint8_t token[16] = {};  // SessionEvent.local_token.
  char tenant[128] = {};   // The tenant of all namespaces that the session will use; padded with 0.
  char client[120] = {};   // For logs; padded with 0.
};
static_assert(sizeof(Hello) == 272);

struct Welcome {
  MessageHeader header;
  uint32_t code = 0;  // absl::StatusCode. Not 0: `text` says why, and nothing else is set.
  uint32_t entries = 0;
  uint32_t scratch_bytes = 0;
  uint32_t max_part_bytes = 0;
  uint64_t node_epoch = 0;   // As SessionEvent's.
  uint64_t quota_bytes = 0;  // Leased and reserved bytes that the session may hold.
  char text[208] = {};
  uint64_t chunk_bytes = 0;  // Bytes of a chunk of a GPU. 0: the node has no device tier.
};
static_assert(sizeof(Welcome) == 256);

enum SegmentFlag : uint32_t {
  kWritable = 1,  // Lent: map it for writing. Others are sealed and cannot be mapped so.
};

struct SegmentEntry {
  uint32_t id = 0;  // Never 0, never used again.
  uint32_t flags = 0;
  uint64_t bytes = 0;
};

struct Segments {
  MessageHeader header;
  uint32_t count = 0;  // 1 to kMaxSegmentsPerMessage.
  uint32_t reserved = 0;
  SegmentEntry entries[kMaxSegmentsPerMessage] = {};
};
static_assert(sizeof(Segments) == 16 + 16 * kMaxSegmentsPerMessage);

inline constexpr size_t kMaxDevicesPerMessage = 16;
inline constexpr size_t kMaxChunksPerMessage = 8;

// The name of a GPU, as NVIDIA's tools write it: "GPU-" and 32 digits with hyphens. Padded with 0.
struct DeviceName {
  char uuid[48] = {};
};

struct Devices {
  MessageHeader header;
  uint32_t count = 0;  // 1 to kMaxDevicesPerMessage.
  uint32_t reserved = 0;
  DeviceName entries[kMaxDevicesPerMessage] = {};
};
static_assert(sizeof(Devices) == 16 + 48 * kMaxDevicesPerMessage);

struct ChunkEntry {
  uint32_t id = 0;  // Never 0, never used again. Not an id of segments.
  uint32_t reserved = 0;
  uint64_t bytes = 0;
  DeviceName device;
};

struct Chunks {
  MessageHeader header;
  uint32_t count = 0;  // 1 to kMaxChunksPerMessage.
  uint32_t reserved = 0;
  ChunkEntry entries[kMaxChunksPerMessage] = {};
};
static_assert(sizeof(Chunks) == 16 + 64 * kMaxChunksPerMessage);

struct Gone {
  MessageHeader header;
  uint32_t count = 0;
  uint32_t ids[kMaxSegmentsPerMessage] = {};
};

struct Closing {
  MessageHeader header;
  uint32_t code = 0;  // absl::StatusCode.
  char text[244] = {};
};

struct Doorbell {
  MessageHeader header;
};

inline constexpr size_t kMaxMessageBytes = 1024;

// The length of a message of this type. 0: there is no such type.
constexpr size_t MessageBytes(MessageType type) {
  switch (type) {
    case MessageType::kHello:
      return sizeof(Hello);
    case MessageType::kWelcome:
      return sizeof(Welcome);
    case MessageType::kSegments:
      return sizeof(Segments);
    case MessageType::kGone:
      return sizeof(Gone);
    case MessageType::kClosing:
      return sizeof(Closing);
    case MessageType::kDoorbell:
      return sizeof(Doorbell);
    case MessageType::kDevices:
      return sizeof(Devices);
    case MessageType::kChunks:
      return sizeof(Chunks);
  }
  return 0;
}

static_assert(std::is_trivially_copyable_v<Submission> &&
              std::is_trivially_copyable_v<Completion> &&
              std::is_trivially_copyable_v<PlaceEntry> && std::is_trivially_copyable_v<Segments>);

}  // namespace cairn::shm
