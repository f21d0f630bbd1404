// Writes KV into the node's own memory, and reads where it lies what no client can change any more:
// on the node's machine neither direction copies more than once. This program can still change the
// bytes that it wrote in place, so the client copies those before it verifies them. From another
// machine the same program works over the network.
//
//   without_copies [ADDRESS]        default: 127.0.0.1:7400

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cairn/client/connect.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"

namespace client = cairn::client;
namespace format = cairn::format;
using std::chrono::seconds;

constexpr uint64_t kBlockBytes = 1 << 20;

// Blocks whose bytes only the engine understands: one layer, one head.
cairn::NamespaceSpec Spec() {
  cairn::NamespaceSpec spec;
  spec.model = "my-model";
  spec.revision = "sha256:0123";
  spec.numerics = "my-engine-1";
  spec.layout.block_tokens = 16;
  spec.layout.form = cairn::OpaqueLayout{
      .description = "1 MiB of my engine", .max_part_bytes = kBlockBytes, .parts = 1};
  return spec;
}

// Keeps what the node lends, and copies of the rest.
class LentSink final : public client::FetchSink {
 public:
  struct Slice {
    std::span<const std::byte> bytes;
    std::shared_ptr<const client::LentHold> hold;  // Null: the bytes are in `copy`.
    std::vector<std::byte> copy;
  };
  explicit LentSink(size_t blocks) : slices_(blocks) {}

  bool WantsLent() const override { return true; }
  cairn::Status OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                            std::shared_ptr<const client::LentHold> hold) override {
    slices_[slice.block] = {data, std::move(hold), {}};
    return cairn::OkStatus();
  }
  // Slices that cannot be lent: they came over the network, or a writer could still change them.
  cairn::Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    Slice& kept = slices_[slice.block];
    kept.copy.assign(data.begin(), data.end());
    kept.bytes = kept.copy;
    return cairn::OkStatus();
  }
  void OnBlockFailed(uint32_t, client::MissReason) override {}
  const std::vector<Slice>& slices() const { return slices_; }

 private:
  std::vector<Slice> slices_;
};

// Stands for the model, which writes its KV to where it shall lie.
void Compute(std::span<std::byte> kv) { std::fill(kv.begin(), kv.end(), std::byte{7}); }
uint64_t Use(std::span<const std::byte> kv) {
  uint64_t sum = 0;
  for (const std::byte byte : kv) sum += static_cast<uint64_t>(byte);
  return sum;
}

cairn::Status Write(client::CacheClient& node, const cairn::NamespaceSpec& spec,
                    const std::vector<cairn::BlockKey>& keys) {
  const format::PartRect rect = spec.layout.WholeRect();
  const auto tokens = static_cast<uint16_t>(spec.layout.block_tokens);
  const std::vector<uint64_t> lengths = {kBlockBytes};
  std::vector<client::PartToWrite> parts;
  for (size_t block = 0; block < keys.size(); ++block) {
    client::PartToWrite part;
    part.key = keys[block];
    if (block > 0) part.parent = keys[block - 1];
    part.first_position = block * tokens;
    part.rect = rect;
    part.bytes = format::PartBytes(lengths);
    parts.push_back(part);
  }
  auto push = node.BeginPush(cairn::Fingerprint(spec), parts, {});
  if (!push.ok()) return push.status();
  for (const client::InPlacePush::Slot& slot : (*push)->slots()) {
    if (!slot.status.ok()) return slot.status;
    if (slot.room.empty()) continue;  // The node has this block already.
    Compute(slot.room.subspan(format::HeaderBytes(1)));
    format::SealPart(slot.room, format::Codec::kOpaque, rect, tokens, lengths);
  }
  auto committed = (*push)->Commit();
  if (!committed.ok()) return committed.status();
  for (const cairn::Status& status : *committed) {
    if (!status.ok()) return status;
  }
  return cairn::OkStatus();
}

int Fail(const char* call, const cairn::Status& status) {
  std::fprintf(stderr, "%s: %s\n", call, cairn::ToString(status).c_str());
  return 1;
}

int main(int argc, char** argv) {
  const std::string address = argc > 1 ? argv[1] : "127.0.0.1:7400";
  auto connected = client::Connect({.address = address, .client_name = "without_copies"});
  if (!connected.ok()) return Fail("connect", connected.status());
  client::CacheClient& node = **connected;
  const cairn::NamespaceSpec spec = Spec();
  auto opened = node.OpenNamespace(spec, {.deadline = seconds(10)});
  if (!opened.ok()) return Fail("open", opened.status());
  const std::vector<int32_t> tokens(64, 1);
  const std::vector<cairn::BlockKey> keys =
      cairn::BlockKeyChain(opened->fingerprint).Keys(tokens, spec.layout.block_tokens);

  const cairn::Status written = Write(node, spec, keys);
  if (!written.ok()) return Fail("write", written);

  auto match = node.Match(opened->fingerprint, keys, {.deadline = seconds(5)});
  if (!match.ok()) return Fail("match", match.status());
  LentSink sink(match->matched_blocks);
  const cairn::Status fetched = node.Fetch(match->lease, {}, sink, {});
  if (!fetched.ok()) return Fail("fetch", fetched);
  match->lease.Release();  // The holds pin the bytes without the lease.

  size_t right = 0, lent = 0;
  for (const LentSink::Slice& slice : sink.slices()) {
    const uint64_t sum = Use(slice.bytes);
    // Use first, then ask: only then it is sure that the bytes were still pinned.
    if (slice.hold != nullptr && !slice.hold->Pinned()) continue;
    lent += slice.hold != nullptr ? 1 : 0;
    right += sum == 7 * kBlockBytes ? 1 : 0;
  }
  std::printf("%zu of %zu blocks are right, %zu of them lent\n", right, keys.size(), lent);
  return right == keys.size() ? 0 : 1;
}
