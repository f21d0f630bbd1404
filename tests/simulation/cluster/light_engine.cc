#include "tests/simulation/cluster/light_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cairn/common/hash.h"
#include "services/cache/cluster/directory/waymarks.h"

namespace cairn::testing {
namespace {

constexpr size_t kKeyBytes = sizeof(BlockKey::bytes);
constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kSmallestBlock = kKeyBytes + 2 * kWord;

uint64_t WordAt(std::span<const std::byte> bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, kWord);
  return word;
}

uint64_t DigestOf(const cache::Bump& bump) {
  return cache::HashForWaymark(
      bump.fingerprint,
      Sha256::Of({reinterpret_cast<const char*>(bump.id.data()), bump.id.size()}));
}

}  // namespace

std::vector<std::byte> LightBytes(const BlockKey& key, uint64_t stamp, size_t size) {
  std::vector<std::byte> bytes(std::max(size, kSmallestBlock),
                               static_cast<std::byte>(key.bytes[0]));
  std::memcpy(bytes.data(), key.bytes.data(), kKeyBytes);
  std::memcpy(bytes.data() + kKeyBytes, &stamp, kWord);
  const uint64_t hash = Xxh3(std::span(bytes).first(bytes.size() - kWord));
  std::memcpy(bytes.data() + bytes.size() - kWord, &hash, kWord);
  return bytes;
}

class LightEngine::Queue final : public cache::EventQueue {
 public:
  explicit Queue(LightEngine* engine) : engine_(*engine) {}
  ~Queue() override { std::erase(engine_.queues_, this); }
  Result<std::vector<CacheEvent>> Next(size_t max, TimePoint) override {
    if (over_) return Errorf(StatusCode::kResourceExhausted, "the watcher was too slow");
    std::vector<CacheEvent> events;
    while (!waiting_.empty() && events.size() < max) {
      events.push_back(waiting_.front());
      waiting_.pop_front();
    }
    return events;
  }
  void Cancel() override {}
  void Add(const CacheEvent& event, bool of_snapshot = false) {
    if (over_) return;
    if (!of_snapshot && waiting_.size() >= engine_.options_.events) {
      over_ = true;
      waiting_.clear();
      return;
    }
    waiting_.push_back(event);
  }

 private:
  LightEngine& engine_;
  std::deque<CacheEvent> waiting_;
  bool over_ = false;
};

class LightEngine::Read final : public cache::StoredBlockRead {
 public:
  Read(LightEngine* engine, BlockId id) : engine_(*engine), id_(std::move(id)) {}
  Result<cache::StoredBlock> Next(TimePoint) override {
    const auto it = engine_.blocks_.find(id_);
    if (it == engine_.blocks_.end()) return Errorf(StatusCode::kNotFound, "it was evicted");
    const auto bytes = std::make_shared<const std::vector<std::byte>>(
        LightBytes(id_.second, it->second.stamp, engine_.options_.block_bytes));
    cache::StoredBlock block;
    block.parts.push_back({{0, 1, 0, 1}, static_cast<uint32_t>(bytes->size())});
    block.bytes.push_back(*bytes);
    block.hold = bytes;
    return block;
  }

 private:
  LightEngine& engine_;
  const BlockId id_;
};

// Where a copy arrives.
class LightEngine::Sink final : public cache::BlockSink {
 public:
  explicit Sink(const BlockKey& key) : key_(key) {}
  Result<std::vector<std::span<std::byte>>> Begin(const cache::SourceBlock& block) override {
    if (block.parts.size() != 1) return InvalidArgument("parts: got {}", block.parts.size());
    bytes_.assign(block.parts[0].bytes, std::byte{0});
    return std::vector<std::span<std::byte>>{bytes_};
  }
  Status Finish() override {
    if (bytes_.size() < kSmallestBlock) return Errorf(StatusCode::kDataLoss, "too short");
    if (Xxh3(std::span(bytes_).first(bytes_.size() - kWord)) !=
        WordAt(bytes_, bytes_.size() - kWord)) {
      return Errorf(StatusCode::kDataLoss, "wrong bytes");
    }
    if (std::memcmp(bytes_.data(), key_.bytes.data(), kKeyBytes) != 0) {
      return Errorf(StatusCode::kDataLoss, "another block");
    }
    finished_ = true;
    return OkStatus();
  }
  bool finished() const { return finished_; }
  uint64_t stamp() const { return WordAt(bytes_, kKeyBytes); }

 private:
  const BlockKey key_;
  std::vector<std::byte> bytes_;
  bool finished_ = false;
};

struct LightEngine::Request {
  Digest fingerprint;
  std::vector<BlockKey> keys;
  Done done;
  Outcome outcome;
  uint32_t next = 0, end = 0;  // Blocks that the source is still asked for.
  size_t under_way = 0;
  bool pumping = false;
};

LightEngine::LightEngine(Options options, const Clock* clock, cache::BlockSource* source,
                         uint64_t seed, TellWrong wrong)
    : options_(options), clock_(*clock), source_(source), wrong_(std::move(wrong)), random_(seed) {}

LightEngine::~LightEngine() = default;

void LightEngine::Load(const LightDisk& disk) {
  namespaces_ = disk.namespaces;
  for (const cache::Bump& bump : disk.bumps) Remember(bump);
  for (const auto& [id, stamp] : disk.blocks) Put(id, stamp);
}

SimulatedDisk LightEngine::Save(bool /*power_loss*/) const {
  LightDisk disk{.namespaces = namespaces_, .blocks = {}, .bumps = bumps_};
  for (const BlockId& id : order_) disk.blocks.emplace_back(id, blocks_.at(id).stamp);
  return {.light = std::move(disk)};
}

void LightEngine::Tell(CacheEvent event) {
  for (Queue* const queue : queues_) queue->Add(event);
}

void LightEngine::Put(const BlockId& id, uint64_t stamp) {
  if (blocks_.contains(id)) return;
  while (blocks_.size() >= options_.capacity_blocks) Remove(BlockId(order_.front()));
  order_.push_back(id);
  blocks_[id] = {stamp, std::prev(order_.end())};
  Tell({.kind = CacheEvent::Kind::kStored, .fingerprint = id.first, .key = id.second});
}

void LightEngine::Remove(const BlockId& id) {
  const auto it = blocks_.find(id);
  order_.erase(it->second.place);
  blocks_.erase(it);
  Tell({.kind = CacheEvent::Kind::kRemoved, .fingerprint = id.first, .key = id.second});
}

void LightEngine::Touch(const Digest& fingerprint, std::span<const BlockKey> keys) {
  for (size_t i = keys.size(); i > 0; --i) {
    const auto it = blocks_.find({fingerprint, keys[i - 1]});
    if (it != blocks_.end()) order_.splice(order_.end(), order_, it->second.place);
  }
}

void LightEngine::Store(const SimulatedNamespace& ns, std::span<const BlockKey> keys) {
  const Digest& fingerprint = ns.fingerprint;
  const uint64_t stamp = BumpsDigestOf(fingerprint);
  for (const BlockKey& key : keys) Put({fingerprint, key}, stamp);
  Touch(fingerprint, keys);
}

uint32_t LightEngine::Prefix(const Digest& fingerprint, std::span<const BlockKey> keys) {
  uint32_t count = 0;
  while (count < keys.size() && Has(fingerprint, keys[count])) ++count;
  return count;
}

void LightEngine::Get(const SimulatedNamespace& ns, std::vector<BlockKey> keys, Done done) {
  const Digest& fingerprint = ns.fingerprint;
  const auto request = std::make_shared<Request>();
  request->fingerprint = fingerprint;
  request->keys = std::move(keys);
  request->done = std::move(done);
  request->outcome.local = Prefix(fingerprint, request->keys);
  Touch(fingerprint, request->keys);
  if (request->outcome.local == request->keys.size()) return request->done(request->outcome);
  Locate(request);
}

void LightEngine::Locate(const std::shared_ptr<Request>& request) {
  const uint32_t local = request->outcome.local;
  source_->Locate(request->fingerprint, std::span(request->keys).subspan(local),
                  clock_.Now() + options_.lookup_patience,
                  [this, request, local](const Result<cache::Located>& located) {
                    if (closed_) return;
                    request->outcome.lookup = located.status();
                    if (located.ok()) {
                      for (const cache::SourceRun& run : located->runs) {
                        request->outcome.located += run.blocks;
                      }
                    }
                    if (local + request->outcome.located > request->keys.size()) {
                      wrong_("a look-up found more blocks than were asked for");
                      request->outcome.located = 0;
                    }
                    request->next = local;
                    request->end = local + request->outcome.located;
                    Pump(request);
                  });
}

void LightEngine::Pump(const std::shared_ptr<Request>& request) {
  if (closed_ || request->pumping || !request->done) return;
  request->pumping = true;
  while (request->next < request->end && request->under_way < options_.reads_at_once) {
    ReadOne(request, request->next++);
  }
  request->pumping = false;
  if (request->next < request->end || request->under_way > 0) return;
  Touch(request->fingerprint, request->keys);
  const Done done = std::exchange(request->done, nullptr);
  done(request->outcome);
}

void LightEngine::ReadOne(const std::shared_ptr<Request>& request, uint32_t number) {
  const BlockId id{request->fingerprint, request->keys[number]};
  if (blocks_.contains(id)) return;
  ++request->under_way;
  auto& waiting = reading_[id];
  waiting.push_back([this, request](bool read) {
    --request->under_way;
    ++(read ? request->outcome.read : request->outcome.failed);
    Pump(request);
  });
  if (waiting.size() > 1) return;
  const auto sink = std::make_shared<Sink>(id.second);
  const uint64_t known = BumpsDigestOf(id.first);
  source_->Read(id.first, id.second, clock_.Now() + options_.read_patience, sink.get(),
                [this, id, sink, known](const Status& status) {
                  if (closed_) return;
                  if (status.ok() && !sink->finished())
                    wrong_("a read succeeded without its bytes");
                  bool accepted = false;
                  if (status.ok() && sink->finished()) {
                    // A copy commits only if the bumps are still those of its start.
                    if (BumpsDigestOf(id.first) != known || !Knows(id.first)) {
                      ++outdated_;
                    } else if (sink->stamp() != known) {
                      wrong_("a block from before a bump was read by a node that knows the bump");
                    } else {
                      Put(id, known);
                      ++accepted_;
                      accepted = true;
                    }
                  }
                  const auto readers = std::move(reading_[id]);
                  reading_.erase(id);
                  for (const auto& tell : readers) tell(accepted);
                });
}

Result<std::unique_ptr<cache::StoredBlockRead>> LightEngine::ReadStored(const Digest& fingerprint,
                                                                        const BlockKey& key) {
  const auto it = blocks_.find({fingerprint, key});
  if (it == blocks_.end()) return Errorf(StatusCode::kNotFound, "the block is not here");
  if (it->second.stamp != BumpsDigestOf(fingerprint)) {
    wrong_("a block that a bump hides is visible");
  }
  return std::make_unique<Read>(this, BlockId(fingerprint, key));
}

uint64_t LightEngine::BumpsDigestOf(const Digest& fingerprint) const {
  const auto it = bump_digests_.find(fingerprint);
  return it == bump_digests_.end() ? 0 : it->second;
}

uint64_t LightEngine::BumpsDigest() const { return bumps_digest_; }

cache::BumpPage LightEngine::Bumps(uint64_t begin, size_t most) const {
  cache::BumpPage page;
  const uint64_t end = std::min<uint64_t>(bumps_.size(), begin + most);
  for (uint64_t i = begin; i < end; ++i) page.bumps.push_back(bumps_[i]);
  page.next = end < bumps_.size() ? end : 0;
  return page;
}

bool LightEngine::Remember(const cache::Bump& bump) {
  if (!known_bumps_[bump.fingerprint].insert(bump.id).second) return false;
  bumps_.push_back(bump);
  bump_digests_[bump.fingerprint] ^= DigestOf(bump);
  bumps_digest_ ^= DigestOf(bump);
  return true;
}

void LightEngine::Hide(const Digest& fingerprint) {
  for (auto it = order_.begin(); it != order_.end();) {
    const BlockId id = *it++;
    if (id.first == fingerprint) Remove(id);
  }
}

Result<size_t> LightEngine::TakeOverBumps(std::span<const cache::Bump> bumps) {
  size_t taken = 0;
  for (const cache::Bump& bump : bumps) {
    if (!Remember(bump)) continue;
    ++taken;
    Hide(bump.fingerprint);
  }
  return taken;
}

DropResult LightEngine::BumpHere(const Digest& fingerprint) {
  cache::Bump bump{.fingerprint = fingerprint, .id = {}};
  for (uint8_t& byte : bump.id) {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<uint8_t>(random_ >> 56);
  }
  Remember(bump);
  Hide(fingerprint);
  return {.namespaces = 1};
}

Result<DropResult> LightEngine::BumpEpoch(const Digest& fingerprint) {
  if (!Knows(fingerprint)) return Errorf(StatusCode::kNotFound, "no such namespace");
  return BumpHere(fingerprint);
}

Result<DropResult> LightEngine::DropNamespace(const Digest& fingerprint) {
  if (!Knows(fingerprint)) return Errorf(StatusCode::kNotFound, "no such namespace");
  const DropResult result = BumpHere(fingerprint);
  namespaces_.erase(fingerprint);
  Tell({.kind = CacheEvent::Kind::kNamespaceDropped, .fingerprint = fingerprint});
  return result;
}

Result<cache::SessionId> LightEngine::OpenSession(std::string_view, std::string_view) {
  sessions_.insert(next_session_);
  return next_session_++;
}

void LightEngine::CloseSession(cache::SessionId session) {
  sessions_.erase(session);
  std::erase_if(leases_, [&](const Lease& lease) { return lease.session == session; });
}

Result<std::shared_ptr<const NamespaceSpec>> LightEngine::GetNamespace(
    const Digest& fingerprint) const {
  if (!Knows(fingerprint)) return Errorf(StatusCode::kNotFound, "no such namespace");
  auto spec = std::make_shared<NamespaceSpec>();
  spec->layout.block_tokens = namespaces_.at(fingerprint);
  return spec;
}

Result<cache::MatchResult> LightEngine::Match(const cache::MatchRequest& request) {
  if (!Knows(request.fingerprint)) return Errorf(StatusCode::kNotFound, "no such namespace");
  if (!sessions_.contains(request.session)) return Errorf(StatusCode::kNotFound, "no session");
  cache::MatchResult result;
  result.matched_blocks = Prefix(request.fingerprint, request.keys);
  result.bytes = result.matched_blocks * options_.block_bytes;
  Touch(request.fingerprint, request.keys.first(result.matched_blocks));
  if (request.lease) {
    leases_.push_back({request.session, clock_.Now() + request.lease_ttl});
    result.lease = leases_.size();
  }
  return result;
}

Result<std::unique_ptr<cache::EventQueue>> LightEngine::Watch(const cache::WatchRequest& request) {
  auto queue = std::make_unique<Queue>(this);
  if (request.snapshot) {
    for (const BlockId& id : order_) {
      queue->Add({.kind = CacheEvent::Kind::kStored, .fingerprint = id.first, .key = id.second},
                 true);
    }
    queue->Add({.kind = CacheEvent::Kind::kSnapshotEnd}, true);
  }
  queues_.push_back(queue.get());
  return queue;
}

void LightEngine::Tick() {
  std::erase_if(leases_, [&](const Lease& lease) { return lease.ends <= clock_.Now(); });
}

}  // namespace cairn::testing
