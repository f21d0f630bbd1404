#include "services/worker/reading/index_store.h"

#include <optional>
#include <utility>

#include "cairn/common/part.h"
#include "common/log/log.h"

namespace cairn::worker {
namespace {

// Limit for a layer: that of any part at a node.
constexpr uint64_t kMostBytes = uint64_t{64} << 20;

NamespaceSpec SpecOf(const NamespaceSpec& kv, const ReadPolicy& policy) {
  NamespaceSpec spec = kv;
  spec.layout.form =
      OpaqueLayout{.description = "index of keys", .max_part_bytes = kMostBytes, .parts = 1};
  spec.numerics =
      fmt::format("index clusters.v1 centres={} of KV {}", policy.centres, Fingerprint(kv).Hex());
  return spec;
}

// Loads the layers as they come.
class IndexSink final : public client::FetchSink {
 public:
  explicit IndexSink(RowIndex& index) : index_(index) {}
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    if (!index_.Load(static_cast<int>(slice.block), data)) {
      return Errorf(StatusCode::kDataLoss,
                    "index of layer {}: got {} bytes, expected the {} bytes of an index of {} rows",
                    slice.block, data.size(), index_.LayerBytes(), index_.units());
    }
    ++loaded_;
    return OkStatus();
  }
  void OnBlockFailed(uint32_t, MissReason) override {}
  uint32_t loaded() const { return loaded_; }

 private:
  RowIndex& index_;
  uint32_t loaded_ = 0;
};

}  // namespace

bool IndexStore::Keeps(const ReadPolicy& policy) { return policy.kind == PolicyKind::kClusters; }

IndexStore::IndexStore(client::CacheClient& client, const NamespaceSpec& kv,
                       const ReadPolicy& policy, const Options& options)
    : client_(client),
      options_(options),
      layers_(kv.layout.Layers()),
      spec_(SpecOf(kv, policy)),
      fingerprint_(Fingerprint(spec_)) {
  CAIRN_CHECK(Keeps(policy) && kv.layout.IsNative());
  const auto opened = client_.OpenNamespace(spec_, {.deadline = options_.connect_deadline});
  if (opened.status().code() == StatusCode::kInvalidArgument) {
    log::Warn("indexes_not_stored", {{"error", ToString(opened.status())}});
  }
}

std::vector<BlockKey> IndexStore::Keys(const BlockKey& last_block) const {
  std::vector<BlockKey> keys;
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    keys.push_back(Sha256()
                       .Update(fmt::format("cairn.index.v1 layer {}", layer))
                       .Update(last_block.View())
                       .Finish());
  }
  return keys;
}

bool IndexStore::Fetch(const BlockKey& last_block, RowIndex& index,
                       const std::string& trace) const {
  IndexSink sink(index);
  client::MatchOptions match;
  match.deadline = options_.match_deadline;
  match.trace = trace;
  client::FetchOptions fetch;
  fetch.deadline = options_.deadline;
  fetch.trace = trace;
  const auto found = client_.Get(fingerprint_, Keys(last_block), {}, sink, match, fetch);
  if (found.ok()) return sink.loaded() == layers_;
  log::Debug("index_not_fetched", {{"error", ToString(found.status())}, {"trace", trace}});
  return false;
}

bool IndexStore::Push(const BlockKey& last_block, const RowIndex& index, double seconds,
                      const std::string& trace) const {
  const uint64_t bytes = index.LayerBytes();
  if (bytes > kMostBytes) return false;
  const uint64_t lengths[] = {bytes};
  std::vector<client::PartToWrite> parts;
  std::optional<BlockKey> parent;
  for (const BlockKey& key : Keys(last_block)) {
    client::PartToWrite part;
    part.key = key;
    part.parent = std::exchange(parent, key);
    part.rect = spec_.layout.WholeRect();
    part.bytes = format::PartBytes(lengths);
    part.compute_seconds = seconds / layers_;
    parts.push_back(std::move(part));
  }
  client::PushOptions options;
  options.deadline = options_.deadline;
  options.trace = trace;
  auto push = client_.BeginPush(fingerprint_, parts, options);
  if (push.ok()) {
    const auto slots = (*push)->slots();
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      const std::span<std::byte> room = slots[layer].room;
      if (room.empty()) continue;  // The node has it, or refused it.
      index.Save(static_cast<int>(layer), room.subspan(format::HeaderBytes(1)));
      format::SealPart(room, format::Codec::kOpaque, spec_.layout.WholeRect(),
                       static_cast<uint16_t>(spec_.layout.block_tokens), lengths);
    }
  }
  Status failure = push.status();
  if (push.ok()) {
    const auto results = (*push)->Commit();
    failure = results.status();
    for (size_t i = 0; failure.ok() && i < results->size(); ++i) failure = (*results)[i];
  }
  if (!failure.ok()) {
    log::Debug("index_not_pushed", {{"error", ToString(failure)}, {"trace", trace}});
  }
  return failure.ok();
}

}  // namespace cairn::worker
