#include "cairn/client/testing/in_memory_cache_client.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "clients/cpp/src/checks.h"
#include "clients/cpp/src/slice_assembler.h"
#include "common/concurrency/mutex.h"
#include "common/keys/part_codec.h"

namespace cairn::client::testing {
namespace {

struct Part {
  format::PartHeader header;
  std::vector<std::byte> bytes;
};

struct Block {
  std::vector<std::shared_ptr<const Part>> parts;
  std::vector<bool> covered;  // By layer, head.
  bool complete = false;
  uint64_t bytes = 0;
};

struct Namespace {
  NamespaceSpec spec;
  std::unordered_map<BlockKey, Block> blocks;
};

// Namespaces of the same tenant that differ in exactly one field.
std::vector<OpenedNamespace::Similar> SimilarTo(const NamespaceSpec& spec,
                                                const std::map<Digest, Namespace>& namespaces) {
  std::vector<OpenedNamespace::Similar> similar;
  for (const auto& [fingerprint, ns] : namespaces) {
    std::vector<FieldDifference> differences = Differences(ns.spec, spec);
    if (ns.spec.tenant == spec.tenant && differences.size() == 1) {
      similar.push_back({std::move(differences[0]), ns.blocks.size()});
    }
  }
  return similar;
}

struct LeaseState {
  Digest fingerprint;
  std::vector<BlockKey> keys;
};

// Marks the rectangle's cells. False when they were all marked before.
bool Cover(Block& block, const format::PartRect& rect, uint32_t heads) {
  bool added = false;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    for (uint32_t head = rect.head_begin; head < rect.head_end; ++head) {
      const size_t cell = size_t{layer} * heads + head;
      added = added || !block.covered[cell];
      block.covered[cell] = true;
    }
  }
  return added;
}

Status CheckPart(const PartToPush& part, const format::PartHeader& header, const Layout& layout) {
  const format::PartRect grid = layout.WholeRect();
  if (header.rect != part.rect || header.rect.layer_end > grid.layer_end ||
      header.rect.head_end > grid.head_end) {
    return InvalidArgument("field 'rect': not the part's own, or not in {} layers x {} heads",
                           grid.layer_end, grid.head_end);
  }
  if (header.block_tokens != layout.block_tokens) {
    return InvalidArgument("field 'block_tokens': got {}, expected {}", header.block_tokens,
                           layout.block_tokens);
  }
  if (!layout.IsNative()) return OkStatus();
  for (uint32_t layer = header.rect.layer_begin; layer < header.rect.layer_end; ++layer) {
    const uint64_t got = header.slices[layer - header.rect.layer_begin].length;
    const uint64_t expected =
        layout.SliceBytes(layer, header.rect.head_begin, header.rect.head_end);
    if (header.codec == format::Codec::kRaw && !header.selected && got != expected) {
      return InvalidArgument("field 'bytes': slice of layer {} has {} bytes, expected {}", layer,
                             got, expected);
    }
  }
  return OkStatus();
}

}  // namespace

struct InMemoryCacheClient::Store final : public LeaseOwner {
  mutable Mutex mu;
  CondVar wake;
  Faults faults ABSL_GUARDED_BY(mu);
  uint64_t faults_set ABSL_GUARDED_BY(mu) = 0;
  uint32_t hanging ABSL_GUARDED_BY(mu) = 0;  // Calls.
  std::map<Digest, Namespace> namespaces ABSL_GUARDED_BY(mu);
  std::map<uint64_t, LeaseState> leases ABSL_GUARDED_BY(mu);
  uint64_t next_lease ABSL_GUARDED_BY(mu) = 1;
  uint64_t epoch ABSL_GUARDED_BY(mu) = 1;
  ClientStats stats ABSL_GUARDED_BY(mu);

  std::string Session() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return fmt::format("session-{}", epoch);
  }

  void ReleaseLease(const LeaseInfo& lease) override {
    MutexLock lock(mu);
    if (lease.session == Session()) leases.erase(lease.id);
  }

  // Waits as a hanging node makes a caller wait. DEADLINE_EXCEEDED, CANCELLED, or OK when the
  // faults were changed.
  Status Hang(Duration wait, const std::stop_token& cancel) {
    const std::stop_callback wake_up(cancel, [this] {
      // Under the lock, so that the waiter is either before its test or asleep.
      MutexLock lock(mu);
      wake.NotifyAll();
    });
    MutexLock lock(mu);
    const uint64_t before = faults_set;
    ++hanging;
    wake.NotifyAll();
    const bool woken = wake.WaitUntil(mu, std::chrono::steady_clock::now() + wait,
                                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
                                        return faults_set != before || cancel.stop_requested();
                                      });
    --hanging;
    if (cancel.stop_requested()) return Errorf(StatusCode::kCancelled, "cancelled by the caller");
    if (!woken) return Errorf(StatusCode::kDeadlineExceeded, "no answer from the node");
    return OkStatus();
  }

  // The checks at the beginning of every call. Counts nothing on success.
  Status Enter(Duration deadline, const std::stop_token& cancel = {}) {
    Status fault;
    bool hang = false;
    {
      MutexLock lock(mu);
      fault = faults.every_call;
      hang = faults.hang;
    }
    if (fault.ok() && hang) fault = Hang(deadline, cancel);
    return Count(std::move(fault));
  }

  Status Count(Status status) {
    MutexLock lock(mu);
    if (!status.ok()) ++stats.calls_by_code[static_cast<size_t>(status.code())];
    return status;
  }

  Result<Namespace*> Find(const Digest& fingerprint) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto it = namespaces.find(fingerprint);
    if (it == namespaces.end()) {
      return Errorf(StatusCode::kNotFound, "namespace {} is not open here", fingerprint.Hex());
    }
    return &it->second;
  }

  Status PushOne(Namespace& ns, const PartToPush& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (!faults.push.ok()) return faults.push;
    CAIRN_ASSIGN_OR_RETURN(format::PartHeader header, format::VerifyPart(part.bytes));
    CAIRN_RETURN_IF_ERROR(CheckPart(part, header, ns.spec.layout));
    Block& block = ns.blocks[part.key];
    block.covered.resize(ns.spec.layout.WholeRect().Cells());
    if (!Cover(block, part.rect, ns.spec.layout.KvHeads())) return OkStatus();
    block.parts.push_back(std::make_shared<const Part>(
        Part{std::move(header), std::vector<std::byte>(part.bytes.begin(), part.bytes.end())}));
    block.bytes += part.bytes.size();
    block.complete =
        std::find(block.covered.begin(), block.covered.end(), false) == block.covered.end();
    ++stats.pushed_parts;
    stats.pushed_bytes += part.bytes.size();
    return OkStatus();
  }
};

namespace {

// The bytes are never evicted.
class Hold final : public LentHold {
 public:
  explicit Hold(std::shared_ptr<const Part> part) : part_(std::move(part)) {}
  bool Pinned() const override { return true; }

 private:
  const std::shared_ptr<const Part> part_;
};

// The slices that Fetch sends, copied out of the store so that the sink runs without its lock.
struct Outgoing {
  uint32_t block = 0;
  std::shared_ptr<const Part> part;
  std::shared_ptr<const Hold> hold;  // If the sink wants lent slices.
};

// `lent`: grows with the bytes that were lent.
Status SendSlice(const Outgoing& from, uint32_t layer, const Faults& faults, SliceAssembler& to,
                 FetchSink& sink, FetchCounts& lent) {
  const format::PartHeader& header = from.part->header;
  const format::SliceEntry& entry = header.slices[layer - header.rect.layer_begin];
  std::span<const std::byte> data = std::span(from.part->bytes).subspan(entry.offset, entry.length);
  SlicePiece piece;
  piece.slice = {.block = from.block,
                 .part = header.rect,
                 .layer = layer,
                 .codec = header.codec,
                 .slice_bytes = entry.length,
                 .xxh3 = entry.xxh3,
                 .tier = TierKind::kHost};
  std::vector<std::byte> damaged;
  const bool corrupt = faults.corrupt_block == from.block;
  if (!data.empty() && (corrupt || faults.wrong_block == from.block)) {
    damaged.assign(data.begin(), data.end());
    damaged[damaged.size() / 2] ^= std::byte{0x10};
    data = damaged;
    if (!corrupt) piece.slice.xxh3 = Xxh3(damaged);
  }
  if (from.hold != nullptr && damaged.empty()) {
    ++lent.slices;
    lent.bytes[0] += data.size();
    return sink.OnLentSlice(piece.slice, data, from.hold);
  }
  piece.chunks.push_back(data);
  return to.Take(piece);
}

}  // namespace

InMemoryCacheClient::InMemoryCacheClient() : store_(std::make_shared<Store>()) {}
InMemoryCacheClient::~InMemoryCacheClient() = default;

void InMemoryCacheClient::SetFaults(Faults faults) {
  MutexLock lock(store_->mu);
  store_->faults = std::move(faults);
  ++store_->faults_set;
  store_->wake.NotifyAll();
}

void InMemoryCacheClient::WaitForHang() {
  MutexLock lock(store_->mu);
  store_->wake.Wait(
      store_->mu, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_->mu) { return store_->hanging > 0; });
}

void InMemoryCacheClient::Restart() {
  MutexLock lock(store_->mu);
  store_->leases.clear();
  ++store_->epoch;
}

void InMemoryCacheClient::Clear() {
  MutexLock lock(store_->mu);
  for (auto& [fingerprint, ns] : store_->namespaces) ns.blocks.clear();
}

uint64_t InMemoryCacheClient::leases() const {
  MutexLock lock(store_->mu);
  return store_->leases.size();
}

uint64_t InMemoryCacheClient::complete_blocks() const {
  MutexLock lock(store_->mu);
  uint64_t blocks = 0;
  for (const auto& [fingerprint, ns] : store_->namespaces) {
    for (const auto& [key, block] : ns.blocks) blocks += block.complete ? 1 : 0;
  }
  return blocks;
}

Result<OpenedNamespace> InMemoryCacheClient::OpenNamespace(const NamespaceSpec& spec,
                                                           const CallOptions& options,
                                                           const NamespaceOptions&) {
  CAIRN_ASSIGN_OR_RETURN(const CheckedNamespace checked, CheckNamespace(spec));
  CAIRN_RETURN_IF_ERROR(PartCodecsOf(checked).status());
  if (!spec.layout.Pools().empty()) {
    return Errorf(StatusCode::kUnimplemented,
                  "field 'layout.opaque.pools': got {}, expected none: this client keeps no pools",
                  spec.layout.Pools().size());
  }
  OpenedNamespace opened;
  opened.fingerprint = checked.fingerprint;
  {
    // As the real client: remembered even while the node is away.
    MutexLock lock(store_->mu);
    opened.differs = SimilarTo(spec, store_->namespaces);
    opened.created = store_->namespaces.try_emplace(opened.fingerprint, Namespace{spec, {}}).second;
  }
  CAIRN_RETURN_IF_ERROR(store_->Enter(options.deadline));
  return opened;
}

Result<MatchOutcome> InMemoryCacheClient::Match(const Digest& fingerprint,
                                                std::span<const BlockKey> keys,
                                                const MatchOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  CAIRN_RETURN_IF_ERROR(CheckHolders(options.holders));
  CAIRN_RETURN_IF_ERROR(store_->Enter(options.deadline));
  MutexLock lock(store_->mu);
  CAIRN_ASSIGN_OR_RETURN(Namespace * ns, store_->Find(fingerprint));
  MatchOutcome outcome;
  ++store_->stats.matches;
  for (const BlockKey& key : keys) {
    const auto it = ns->blocks.find(key);
    if (it == ns->blocks.end() || !it->second.complete) {
      outcome.miss_reason = it == ns->blocks.end() ? MissReason::kAbsent : MissReason::kIncomplete;
      break;
    }
    ++outcome.matched_blocks;
    outcome.bytes += it->second.bytes;
  }
  if (ns->blocks.empty() && outcome.miss_reason == MissReason::kAbsent &&
      std::ranges::any_of(SimilarTo(ns->spec, store_->namespaces),
                          [](const auto& similar) { return similar.stored_blocks > 0; })) {
    outcome.miss_reason = MissReason::kFingerprint;
  }
  if (outcome.matched_blocks == 0) return outcome;
  store_->stats.matched_blocks += outcome.matched_blocks;
  outcome.tiers.push_back({TierKind::kHost, outcome.matched_blocks, outcome.bytes});
  if (options.lease) {
    const Duration ttl =
        options.lease_ttl > Duration::zero() ? options.lease_ttl : std::chrono::seconds(30);
    const uint64_t id = store_->next_lease++;
    store_->leases[id] = {fingerprint, {keys.begin(), keys.begin() + outcome.matched_blocks}};
    outcome.lease = Lease(store_, {.id = id,
                                   .session = store_->Session(),
                                   .fingerprint = fingerprint,
                                   .blocks = outcome.matched_blocks,
                                   .expires_at = std::chrono::steady_clock::now() + ttl});
  }
  return outcome;
}

Status InMemoryCacheClient::Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
                                  const FetchOptions& options) {
  if (lease.held()) CAIRN_RETURN_IF_ERROR(CheckRange(range, lease.info().blocks));
  CAIRN_RETURN_IF_ERROR(
      store_->Enter(std::min(options.progress, options.deadline), options.cancel));
  std::vector<Outgoing> outgoing;
  SliceAssembler assembler(&sink, {.blocks = lease.held() ? lease.info().blocks : 0});
  Faults faults;
  uint32_t layer_end = range.layer_end;
  {
    MutexLock lock(store_->mu);
    const auto it = lease.held() && lease.info().session == store_->Session()
                        ? store_->leases.find(lease.info().id)
                        : store_->leases.end();
    if (it == store_->leases.end()) return Errorf(StatusCode::kNotFound, "lease has ended");
    CAIRN_ASSIGN_OR_RETURN(Namespace * ns, store_->Find(it->second.fingerprint));
    faults = store_->faults;
    ++store_->stats.fetches;
    if (layer_end == 0) layer_end = ns->spec.layout.Layers();
    const auto blocks = static_cast<uint32_t>(it->second.keys.size());
    const uint32_t block_end = range.block_end == 0 ? blocks : std::min(range.block_end, blocks);
    for (uint32_t b = range.block_begin; b < block_end; ++b) {
      const auto found = ns->blocks.find(it->second.keys[b]);
      if (found == ns->blocks.end() || faults.evict_block == b) {
        outgoing.push_back({b, nullptr, nullptr});
        continue;
      }
      for (const auto& part : found->second.parts) {
        outgoing.push_back({b, part, sink.WantsLent() ? std::make_shared<Hold>(part) : nullptr});
      }
    }
  }
  for (const Outgoing& item : outgoing) {
    if (item.part == nullptr) assembler.Fail(item.block, MissReason::kEvicted);
  }
  Status status;
  FetchCounts lent;
  uint64_t sent = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (uint32_t layer = range.layer_begin; layer < layer_end && status.ok(); ++layer) {
    for (const Outgoing& item : outgoing) {
      if (item.part == nullptr) continue;
      const format::PartRect& rect = item.part->header.rect;
      if (layer < rect.layer_begin || layer >= rect.layer_end) continue;
      if (options.cancel.stop_requested()) {
        status = Errorf(StatusCode::kCancelled, "cancelled by the caller");
      } else if (faults.break_fetch_after && sent >= *faults.break_fetch_after) {
        status = Errorf(StatusCode::kUnavailable, "connection reset by the node");
      } else if (faults.hang_fetch_after && sent == *faults.hang_fetch_after) {
        status = store_->Hang(std::min(options.progress, options.deadline), options.cancel);
      } else if (std::chrono::steady_clock::now() - begin > options.deadline) {
        status = Errorf(StatusCode::kDeadlineExceeded, "fetch: it took longer than its deadline");
      }
      if (status.ok()) status = SendSlice(item, layer, faults, assembler, sink, lent);
      if (!status.ok()) break;
      ++sent;
    }
  }
  MutexLock lock(store_->mu);
  store_->stats.lent_bytes += lent.bytes[0];
  store_->stats.fetched_slices += assembler.counts().slices + lent.slices;
  store_->stats.corrupt_slices += assembler.counts().corrupt;
  store_->stats.fetched_bytes[0] += assembler.counts().bytes[0] + lent.bytes[0];
  ++store_->stats.calls_by_code[static_cast<size_t>(status.code())];
  return status;
}

Result<std::vector<Status>> InMemoryCacheClient::Push(const Digest& fingerprint,
                                                      std::span<const PartToPush> parts,
                                                      const PushOptions& options) {
  CAIRN_RETURN_IF_ERROR(store_->Enter(options.deadline));
  MutexLock lock(store_->mu);
  CAIRN_ASSIGN_OR_RETURN(Namespace * ns, store_->Find(fingerprint));
  std::vector<Status> results;
  for (const PartToPush& part : parts) results.push_back(store_->PushOne(*ns, part));
  return results;
}

Result<std::unique_ptr<InPlacePush>> InMemoryCacheClient::BeginPush(
    const Digest& fingerprint, std::span<const PartToWrite> parts, const PushOptions& options) {
  CAIRN_RETURN_IF_ERROR(store_->Enter(options.deadline));
  return CacheClient::BeginPush(fingerprint, parts, options);
}

Result<std::vector<std::optional<TierKind>>> InMemoryCacheClient::Exists(
    const Digest& fingerprint, std::span<const BlockKey> keys, const CallOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  CAIRN_RETURN_IF_ERROR(store_->Enter(options.deadline));
  MutexLock lock(store_->mu);
  CAIRN_ASSIGN_OR_RETURN(Namespace * ns, store_->Find(fingerprint));
  std::vector<std::optional<TierKind>> tiers;
  for (const BlockKey& key : keys) {
    const auto it = ns->blocks.find(key);
    const bool complete = it != ns->blocks.end() && it->second.complete;
    tiers.push_back(complete ? std::optional(TierKind::kHost) : std::nullopt);
  }
  return tiers;
}

Result<PrefetchOutcome> InMemoryCacheClient::Prefetch(const Digest& fingerprint,
                                                      std::span<const BlockKey> keys, Duration,
                                                      const CallOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const auto tiers, Exists(fingerprint, keys, options));
  PrefetchOutcome outcome;
  for (const auto& tier : tiers) ++(tier ? outcome.present_blocks : outcome.absent_blocks);
  return outcome;
}

Result<Duration> InMemoryCacheClient::RenewLease(const Lease& lease, Duration ttl,
                                                 const CallOptions& options) {
  CAIRN_RETURN_IF_ERROR(store_->Enter(options.deadline));
  MutexLock lock(store_->mu);
  if (!lease.held() || lease.info().session != store_->Session() ||
      !store_->leases.contains(lease.info().id)) {
    return Errorf(StatusCode::kNotFound, "lease has ended");
  }
  return ttl;
}

Status InMemoryCacheClient::Flush(const CallOptions& options) {
  return store_->Enter(options.deadline);
}

Result<NodeStats> InMemoryCacheClient::Stat(const CallOptions& options) {
  CAIRN_RETURN_IF_ERROR(store_->Enter(options.deadline));
  NodeStats stats;
  stats.blocks = complete_blocks();
  MutexLock lock(store_->mu);
  stats.node_id = "in-memory";
  stats.node_epoch = store_->epoch;
  stats.namespaces = store_->namespaces.size();
  stats.leases = store_->leases.size();
  stats.pushed_bytes = store_->stats.pushed_bytes;
  stats.fetched_bytes = stats.fetched_host_bytes = store_->stats.fetched_bytes[0];
  return stats;
}

Result<std::unique_ptr<EventStream>> InMemoryCacheClient::WatchEvents(const WatchOptions&) {
  return Errorf(StatusCode::kUnimplemented, "the in-memory cache has no events");
}

ClientStats InMemoryCacheClient::GetStats() const {
  MutexLock lock(store_->mu);
  ClientStats stats = store_->stats;
  stats.connected = store_->faults.every_call.ok() && !store_->faults.hang;
  return stats;
}

}  // namespace cairn::client::testing
