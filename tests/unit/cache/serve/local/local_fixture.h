#pragma once
// An engine on an arena of small segments, and the client's end of a ring that calls by hand.

#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "services/cache/serve/local/local_server.h"
#include "services/cache/serve/local/local_server_session.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {

inline constexpr uint64_t kSegmentBytes = 2 << 20;

struct LocalEngine {
  explicit LocalEngine(uint64_t segments, const Clock* clock_in = &SteadyClock::Get(),
                       FakeTier* disk = nullptr, BlockSource* source = nullptr,
                       Timers* timers = nullptr,
                       const std::function<Tier*(HostTier*)>& make_device = nullptr) {
    auto tier = HostTier::Create({.capacity_bytes = segments * kSegmentBytes,
                                  .segment_bytes = kSegmentBytes,
                                  .prefault = false,
                                  .check_memory = false});
    EXPECT_OK(tier);
    host = *std::move(tier);
    Tiers tiers(host.get());
    if (make_device) tiers.Add(make_device(host.get()));
    auto made = CacheEngine::Create({}, {.tiers = tiers.Add(disk),
                                         .clock = const_cast<Clock*>(clock_in),
                                         .executor = &executor,
                                         .node_id = "node",
                                         .node_epoch = 1,
                                         .source = source,
                                         .timers = timers});
    EXPECT_OK(made);
    engine = *std::move(made);
  }
  Fingerprint Open(const std::string& tenant) {
    NamespaceSpec spec = TestSpec();
    spec.tenant = tenant;
    auto opened = engine->OpenNamespace(spec, false);
    EXPECT_OK(opened);
    return opened->fingerprint;
  }
  // As a client over the network stores it.
  void Store(SessionId session, const Fingerprint& ns, uint64_t n, std::optional<uint64_t> parent) {
    const Layout layout = TestSpec().layout;
    ReservePartRequest part;
    part.key = TestKey(n);
    if (parent) part.parent = TestKey(*parent);
    part.part = layout.WholeRect();
    const auto bytes = TestPart(layout, n, part.part);
    part.bytes = bytes.size();
    auto ids = engine->Reserve(session, ns, {&part, 1}, Duration(0));
    ASSERT_OK(ids);
    ASSERT_OK((*ids)[0]);
    const ReservationId id = *(*ids)[0];
    ASSERT_OK(engine->Write(session, id, 0, bytes));
    auto results = engine->Commit(session, {&id, 1}, "");
    ASSERT_OK(results);
    ASSERT_OK((*results)[0]);
  }

  ManualExecutor executor;
  std::unique_ptr<HostTier> host;
  std::unique_ptr<CacheEngine> engine;
};

// Segments that a session sent, mapped.
class MappedSegments : public ArenaSegmentSender {
 public:
  struct Segment {
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    bool writable = false;
    int fd = -1;
  };
  ~MappedSegments() override {
    for (auto& [id, segment] : segments) {
      munmap(segment.base, segment.bytes);
      close(segment.fd);
    }
    for (auto& [id, chunk] : chunks) close(chunk.fd);
  }
  Status SendSegments(const shm::Segments& message, std::span<const int> fds) override {
    if (refuse) return Errorf(StatusCode::kResourceExhausted, "the peer does not read");
    for (uint32_t i = 0; i < message.count; ++i) Add(message.entries[i], dup(fds[i]));
    return OkStatus();
  }
  Status SendChunks(const shm::Chunks& message, std::span<const int> fds) override {
    if (refuse) return Errorf(StatusCode::kResourceExhausted, "the peer does not read");
    for (uint32_t i = 0; i < message.count; ++i) {
      EXPECT_FALSE(chunks.contains(message.entries[i].id)) << "a chunk is sent once";
      chunks[message.entries[i].id] = {message.entries[i], dup(fds[i])};
    }
    return OkStatus();
  }
  void Add(const shm::SegmentEntry& entry, int fd) {
    EXPECT_FALSE(segments.contains(entry.id)) << "a segment is sent once";
    const bool writable = (entry.flags & shm::kWritable) != 0;
    void* base =
        mmap(nullptr, entry.bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    ASSERT_NE(base, MAP_FAILED);
    segments[entry.id] = {static_cast<std::byte*>(base), entry.bytes, writable, fd};
  }
  std::span<std::byte> At(uint32_t id, uint64_t offset, uint64_t bytes) {
    const auto it = segments.find(id);
    EXPECT_NE(it, segments.end()) << "segment " << id;
    if (it == segments.end()) return {};
    EXPECT_LE(offset + bytes, it->second.bytes);
    return {it->second.base + offset, bytes};
  }

  struct Chunk {
    shm::ChunkEntry entry;
    int fd = -1;
  };
  std::map<uint32_t, Segment> segments;
  std::map<uint32_t, Chunk> chunks;
  bool refuse = false;
};

// The client's end. Keys lie at 0 of the scratch, answers from its middle on.
class RingCaller {
 public:
  RingCaller(shm::ClientRing ring, std::function<void()> pump)
      : ring_(std::move(ring)), pump_(std::move(pump)) {}

  shm::Submission Make(shm::Op op) {
    shm::Submission s;
    s.cookie = ++cookie_;
    s.op = static_cast<uint8_t>(op);
    s.output = {Middle(), Middle()};
    return s;
  }
  shm::Submission WithKeys(shm::Op op, const Fingerprint& ns, std::span<const BlockKey> keys) {
    shm::Submission s = Make(op);
    std::memcpy(ring_.scratch().data(), keys.data(), keys.size() * sizeof(BlockKey));
    s.input = {0, static_cast<uint32_t>(keys.size() * sizeof(BlockKey))};
    std::memcpy(s.body, ns.bytes.data(), sizeof(s.body));
    return s;
  }
  shm::Submission WithIds(shm::Op op, std::span<const uint64_t> ids) {
    shm::Submission s = Make(op);
    std::memcpy(ring_.scratch().data(), ids.data(), ids.size() * 8);
    s.input = {0, static_cast<uint32_t>(ids.size() * 8)};
    return s;
  }
  shm::Submission WithLease(shm::Op op, uint64_t lease, uint32_t begin = 0, uint32_t end = 0) {
    shm::Submission s = Make(op);
    const shm::LocateBody body{lease, begin, end, {}};
    std::memcpy(s.body, &body, sizeof(body));
    return s;
  }
  shm::Completion Call(const shm::Submission& s) {
    EXPECT_TRUE(ring_.Submit(s));
    return Wait(s);
  }
  shm::Completion Wait(const shm::Submission& s) {
    shm::Completion done;
    if (pump_) pump_();
    EXPECT_TRUE(ring_.Wait(Duration(0), SteadyClock::Get().Now() + std::chrono::seconds(60)));
    EXPECT_EQ(ring_.ReapOne(&done), shm::ClientRing::Reap::kOne);
    EXPECT_OK(shm::Check(done, s));
    return done;
  }
  template <typename T>
  std::vector<T> Output(const shm::Submission& s, const shm::Completion& done) {
    std::vector<T> entries(done.count);
    std::memcpy(static_cast<void*>(entries.data()), ring_.scratch().data() + s.output.offset,
                done.count * sizeof(T));
    return entries;
  }
  std::string Text(const shm::Submission& s, const shm::Completion& done) {
    return shm::TextOf(done, ring_.scratch(), s.output);
  }

  shm::Submission MatchPoolsCall(const Fingerprint& ns, const shm::PoolQuestion& question,
                                 std::span<const BlockKey> keys) {
    shm::Submission s = Make(shm::Op::kMatchPools);
    std::byte* const at = ring_.scratch().data();
    std::memcpy(at, &question, sizeof(question));
    std::memcpy(at + sizeof(question), keys.data(), keys.size_bytes());
    s.input = {0, static_cast<uint32_t>(sizeof(question) + keys.size_bytes())};
    std::memcpy(s.body, ns.bytes.data(), sizeof(s.body));
    return s;
  }
  shm::Submission MatchCall(const Fingerprint& ns, std::span<const BlockKey> keys) {
    shm::Submission s = WithKeys(shm::Op::kMatch, ns, keys);
    s.flags = shm::kPlaces;
    return s;
  }
  // Reserves block n, writes its bytes in place, flips a bit of byte `damage`, commits: the
  // commit's code.
  uint8_t Put(MappedSegments& segments, const Fingerprint& ns, uint64_t n,
              std::optional<uint64_t> parent, std::optional<size_t> damage = std::nullopt) {
    const shm::Grant grant = Reserve(ns, n, parent);
    if (grant.code != 0) return grant.code;
    const Layout layout = TestSpec().layout;
    const auto bytes = TestPart(layout, n, layout.WholeRect());
    const auto room = segments.At(grant.segment, grant.offset, bytes.size());
    std::memcpy(room.data(), bytes.data(), bytes.size());
    if (damage) room[std::min(*damage, bytes.size() - 1)] ^= std::byte{1};
    return Commit(grant.reservation);
  }
  shm::Grant Reserve(const Fingerprint& ns, uint64_t n, std::optional<uint64_t> parent) {
    const Layout layout = TestSpec().layout;
    shm::ReserveEntry entry;
    std::memcpy(entry.key, TestKey(n).bytes.data(), 32);
    if (parent) {
      entry.has_parent = 1;
      std::memcpy(entry.parent, TestKey(*parent).bytes.data(), 32);
    }
    const format::PartRect whole = layout.WholeRect();
    entry.bytes = TestPart(layout, n, whole).size();
    entry.layer_end = whole.layer_end;
    entry.head_end = whole.head_end;
    shm::Submission s = Make(shm::Op::kReserve);
    std::memcpy(ring_.scratch().data(), &entry, sizeof(entry));
    s.input = {0, sizeof(entry)};
    std::memcpy(s.body, ns.bytes.data(), sizeof(s.body));
    const shm::Completion done = Call(s);
    shm::Grant grant;
    grant.code = done.code;
    return done.code == 0 ? Output<shm::Grant>(s, done).at(0) : grant;
  }
  uint8_t Commit(uint64_t reservation) {
    const shm::Submission s = WithIds(shm::Op::kCommit, {&reservation, 1});
    const shm::Completion done = Call(s);
    return done.code != 0 ? done.code : Output<uint8_t>(s, done).at(0);
  }
  void Release(uint64_t lease) { EXPECT_EQ(Call(WithIds(shm::Op::kRelease, {&lease, 1})).code, 0); }

  shm::ClientRing& ring() { return ring_; }

 private:
  uint32_t Middle() const { return ring_.shape().scratch_bytes / 2; }
  shm::ClientRing ring_;
  std::function<void()> pump_;
  uint64_t cookie_ = 0;
};

}  // namespace cairn::cache::testing
