// A session of a real engine whose ring, scratch and lent memory a client fills with arbitrary
// bytes. The index has blocks of its tenant and of another one. After it, the other tenant's blocks
// are as they were, none of them was placed for the client, and nothing is held.
#include <cstdlib>
#include <cstring>

#include "cairn/common/part.h"
#include "common/log/log.h"
#include "services/cache/serve/local/local_server_session.h"
#include "tests/fuzz/input.h"

using namespace cairn;
using namespace cairn::cache;

namespace {

constexpr shm::RingShape kShape{.entries = 4, .scratch_bytes = 8192};
constexpr uint64_t kSegment = 2 << 20;
constexpr uint16_t kParts = 2;
constexpr uint8_t kBlocks = 8;  // Blocks of each tenant; keys beyond them are of no block.

BlockKey KeyOf(uint8_t n) {
  BlockKey key;
  std::memset(key.bytes.data(), n, key.bytes.size());
  return key;
}

// One part of block n of a tenant.
std::vector<std::byte> PartOf(char tenant, uint8_t n, uint16_t part) {
  const std::vector<uint64_t> lengths = {200};
  std::vector<std::byte> bytes(format::PartBytes(lengths));
  std::memset(bytes.data(), tenant + n + part, bytes.size());
  format::SealPart(bytes, format::Codec::kOpaque, {0, 1, part, static_cast<uint16_t>(part + 1)}, 16,
                   lengths);
  return bytes;
}

void Expect(bool condition) {
  if (!condition) std::abort();
}

template <typename T>
T Get(Result<T> result) {
  Expect(result.ok());
  return *std::move(result);
}

struct NoSink : ArenaSegmentSender {
  Status SendSegments(const shm::Segments&, std::span<const int>) override { return OkStatus(); }
  Status SendChunks(const shm::Chunks&, std::span<const int>) override { return OkStatus(); }
};

struct World {
  World() {
    log::Configure({.level = log::Level::kError});
    host = Get(HostTier::Create({.capacity_bytes = 4 * kSegment,
                                 .segment_bytes = kSegment,
                                 .prefault = false,
                                 .check_memory = false}));
    engine = Get(CacheEngine::Create({}, {.tiers = cache::Tiers(host.get()),
                                          .clock = &clock,
                                          .executor = &executor,
                                          .node_id = "node",
                                          .node_epoch = 1}));
    own = Open(std::string("a"));
    other = Open(std::string("b"));
    owner = Get(host->AddOwner("a"));
    session = Get(engine->OpenSession("others"));
    for (uint8_t n = 0; n < kBlocks; ++n) {
      Store(own, 'a', n);
      Store(other, 'b', n);
    }
    std::vector<BlockKey> keys;
    for (uint8_t n = 0; n < kBlocks; ++n) keys.push_back(KeyOf(n));
    // The lease keeps them, whatever the client makes room for.
    const MatchResult match = Get(engine->in_place()->MatchInPlace(
        {.session = session, .fingerprint = other, .keys = keys, .lease = true, .trace = {}},
        SIZE_MAX, &others));
    Expect(match.matched_blocks == kBlocks && others.size() == size_t{kBlocks} * kParts);
  }

  void Store(const cache::Fingerprint& ns, char tenant, uint8_t n) {
    for (uint16_t p = 0; p < kParts; ++p) {
      const std::vector<std::byte> bytes = PartOf(tenant, n, p);
      ReservePartRequest part;
      part.key = KeyOf(n);
      if (n > 0) part.parent = KeyOf(static_cast<uint8_t>(n - 1));
      part.part = {0, 1, p, static_cast<uint16_t>(p + 1)};
      part.bytes = bytes.size();
      const ReservationId id = Get(Get(engine->Reserve(session, ns, {&part, 1}, Duration(0)))[0]);
      Expect(engine->Write(session, id, 0, bytes).ok());
      Expect(Get(engine->Commit(session, {&id, 1}, ""))[0].ok());
    }
  }

  void ExpectOthersUntouched() const {
    for (size_t i = 0; i < others.size(); ++i) {
      const std::vector<std::byte> want =
          PartOf('b', static_cast<uint8_t>(others[i].block), static_cast<uint16_t>(i % kParts));
      const auto bytes = host->Map({others[i].extent, others[i].bytes});
      Expect(std::equal(bytes.begin(), bytes.end(), want.begin(), want.end()));
    }
  }

  // As each client of the tenant can, at any time.
  void ScribbleLent(const uint8_t* data, size_t size) const {
    if (size == 0) return;
    for (const HostTier::Place& place : host->SegmentsOf(owner)) {
      if (place.lending != Lending::kLent) continue;
      const auto memory = host->Map({uint64_t{place.index} * kSegment, 16384});
      for (size_t i = 0; i < memory.size(); ++i) memory[i] ^= std::byte{data[i % size]};
    }
  }

  cache::Fingerprint Open(std::string tenant) {
    NamespaceSpec spec;
    spec.tenant = std::move(tenant);
    spec.model = std::string("m");
    spec.revision = std::string("1");
    spec.numerics = std::string("n");
    spec.layout.block_tokens = 16;
    OpaqueLayout layout;
    layout.description = std::string("d");
    layout.max_part_bytes = 8192;
    layout.parts = 2;
    spec.layout.form = layout;
    return Get(engine->OpenNamespace(spec, false)).fingerprint;
  }

  FakeClock clock;
  InlineExecutor executor;
  std::unique_ptr<HostTier> host;
  std::unique_ptr<CacheEngine> engine;
  cache::Fingerprint own, other;
  SessionId session = 0;
  std::vector<PlacedPart> others;
  OwnerId owner = kCommon;
  LocalStats stats;
  LocalBuffers buffers;
  NoSink sink;
};

}  // namespace

CAIRN_FUZZ_ENTRY(local_session)(const uint8_t* data, size_t size) {
  static World& world = *new World;
  alignas(4096) static std::byte memory[16384];
  static_assert(kShape.bytes() <= sizeof(memory));
  if (size < 1) return 0;
  const uint8_t mode = data[0];
  std::memset(memory, 0, kShape.bytes());
  std::memcpy(memory, data + 1, std::min(size - 1, size_t{kShape.bytes()}));
  if ((mode & 1) != 0) {
    // A sane counter, so that the descriptors are looked at.
    auto& header = *reinterpret_cast<shm::RingHeader*>(memory);
    header.submission_tail.store(1 + (mode >> 6));
    header.completion_head.store(0);
  }
  for (uint32_t i = 0; (mode & 2) != 0 && i < kShape.entries; ++i) {
    shm::Submission s;
    std::byte* at = memory + kShape.submissions_at() + i * sizeof(s);
    std::memcpy(&s, at, sizeof(s));
    s.op = static_cast<uint8_t>(1 + s.op % shm::kLastOp);
    s.flags &= s.op == static_cast<uint8_t>(shm::Op::kMatch) ? 3 : 0;
    s.reserved = 0;
    s.input.offset = s.input.offset % 4096 / 8 * 8;
    s.input.bytes %= 2048;
    s.output = {4096, 4096};
    if ((mode & 8) != 0) {
      // Keys that are there, and leases and reservations that may be.
      for (uint32_t word = 0; word + 8 <= s.input.bytes; word += 8) {
        std::byte* const inputs = memory + kShape.scratch_at() + s.input.offset;
        // The words of one key are equal.
        const bool ids = s.op == 4 || s.op > 6;
        const int n = static_cast<int>(inputs[ids ? word : word / 32 * 32]) % (kBlocks + 2);
        std::memset(inputs + word, n, ids ? 1 : 8);
      }
    }
    const bool named = s.op == static_cast<uint8_t>(shm::Op::kMatch) ||
                       s.op == static_cast<uint8_t>(shm::Op::kExists) ||
                       s.op == static_cast<uint8_t>(shm::Op::kReserve);
    const uint32_t entry = s.op == static_cast<uint8_t>(shm::Op::kReserve)
                               ? sizeof(shm::ReserveEntry)
                           : named ? 32u
                                   : 8u;
    s.input.bytes = s.input.bytes / entry * entry;
    if (named) {
      std::memcpy(s.body, (mode & 4) != 0 ? world.other.bytes.data() : world.own.bytes.data(), 32);
    } else {
      std::memset(s.body + 16, 0, 16);
      if (s.op == 3 || s.op == 5 || s.op == 9) s.input = {};
    }
    std::memcpy(at, &s, sizeof(s));
  }

  const SessionId id = Get(world.engine->OpenSession("fuzz"));
  {
    LocalServerSession session(
        {.engine = world.engine.get(),
         .host = world.host.get(),
         .clock = &world.clock,
         .stats = &world.stats,
         .buffers = &world.buffers},
        {.session = id, .owner = world.owner, .tenant = "a", .quota_bytes = 1 << 20},
        shm::NodeRing(shm::RingMemory::Borrow(memory, kShape)), &world.sink);
    Status why;
    for (int turn = 0; turn < 3 && session.Serve(8, &why); ++turn) {
      world.ScribbleLent(data, size);
      if (session.has_waiting()) {
        world.clock.Advance(std::chrono::minutes(2));
        session.RetryWaiting();
      }
      Expect(session.held_bytes() <= 1 << 20);
    }
  }
  world.engine->CloseSession(id);
  Expect(world.stats.held_bytes.load() == 0);
  world.ExpectOthersUntouched();
  const EngineStats stats = world.engine->GetStats();
  Expect(stats.leases == 1 && stats.reservations == 0 && stats.reserved_bytes == 0);
  return 0;
}
