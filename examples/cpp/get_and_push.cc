// Gets the KV of a prompt from a cache node, computes what the node does not have, and stores it.
//
//   get_and_push [ADDRESS]        default: 127.0.0.1:7400
//
// The first run computes all blocks. Later runs find them, as long as the node keeps them.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "cairn/client/connect.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/seal_copy.h"

namespace client = cairn::client;
namespace format = cairn::format;
using std::chrono::seconds;

// Everything that must be equal for KV to be interchangeable.
cairn::NamespaceSpec Spec() {
  const std::vector<cairn::Plane> planes = {
      {.name = "k", .heads = 4, .dim = 32, .dtype = cairn::DType::kF16},
      {.name = "v", .heads = 4, .dim = 32, .dtype = cairn::DType::kF16}};
  cairn::NamespaceSpec spec;
  spec.model = "my-model";
  spec.revision = "sha256:0123";
  spec.numerics = "my-engine-1";
  spec.layout.block_tokens = 16;
  spec.layout.form = cairn::NativeLayout{.groups = {{.count = 2, .planes = planes}}, .kv_heads = 4};
  return spec;
}

// The KV of a prompt: the bytes of each block, one layer after the other.
using PromptKv = std::vector<std::vector<std::byte>>;

// Lets a fetch write each slice to its place.
class KvSink final : public client::FetchSink {
 public:
  KvSink(PromptKv& kv, size_t blocks, uint32_t layers) : kv_(kv), missing_(blocks, layers) {}

  std::span<std::byte> Destination(const client::SliceInfo& slice) override {
    // All layers of this model are equally long.
    return std::span(kv_[slice.block]).subspan(slice.layer * slice.slice_bytes, slice.slice_bytes);
  }
  cairn::Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte>) override {
    --missing_[slice.block];
    return cairn::OkStatus();
  }
  void OnBlockFailed(uint32_t, client::MissReason) override {}

  // Blocks from the first one on that have all their layers.
  size_t CompleteBlocks() const {
    size_t complete = 0;
    while (complete < missing_.size() && missing_[complete] == 0) ++complete;
    return complete;
  }

 private:
  PromptKv& kv_;
  std::vector<uint32_t> missing_;  // Layers, by block.
};

// Brings what the node has of the prompt, and returns the number of blocks. Every error is a miss.
size_t Get(client::CacheClient& node, const cairn::NamespaceSpec& spec,
           const std::vector<cairn::BlockKey>& keys, PromptKv& kv) {
  auto match = node.Match(cairn::Fingerprint(spec), keys, {.deadline = seconds(5)});
  if (!match.ok() || match->matched_blocks == 0) return 0;
  KvSink sink(kv, match->matched_blocks, spec.layout.Layers());
  const cairn::Status fetched = node.Fetch(match->lease, {}, sink, {});
  if (!fetched.ok()) std::fprintf(stderr, "fetch: %s\n", cairn::ToString(fetched).c_str());
  return sink.CompleteBlocks();  // After an error, too: what came before it is good.
}

// Stores the blocks from `first` on. The node keeps a block as a part: a header and its slices.
cairn::Status Push(client::CacheClient& node, const cairn::NamespaceSpec& spec,
                   const std::vector<cairn::BlockKey>& keys, const PromptKv& kv, size_t first) {
  const format::PartRect rect = spec.layout.WholeRect();
  const auto tokens = static_cast<uint16_t>(spec.layout.block_tokens);
  const uint64_t slice_bytes = spec.layout.SliceBytes(0, rect.head_begin, rect.head_end);
  const std::vector<uint64_t> lengths(spec.layout.Layers(), slice_bytes);
  std::vector<std::vector<std::byte>> sealed;
  std::vector<client::PartToPush> parts;
  for (size_t block = first; block < keys.size(); ++block) {
    sealed.emplace_back(format::PartBytes(lengths));
    format::SealCopy(sealed.back(), kv[block], format::Codec::kRaw, rect, tokens, lengths,
                     /*streaming=*/false);
    client::PartToPush part;
    part.key = keys[block];
    if (block > 0) part.parent = keys[block - 1];
    part.first_position = block * tokens;
    part.rect = rect;
    part.bytes = sealed.back();
    parts.push_back(part);
  }
  auto pushed = node.Push(cairn::Fingerprint(spec), parts, {});
  if (!pushed.ok()) return pushed.status();
  for (const cairn::Status& status : *pushed) {
    if (!status.ok()) return status;
  }
  return cairn::OkStatus();
}

// Stands for the model.
std::vector<std::byte> Compute(size_t block, const cairn::Layout& layout) {
  const uint64_t bytes = layout.Layers() * layout.SliceBytes(0, 0, layout.KvHeads());
  return std::vector<std::byte>(bytes, static_cast<std::byte>(block + 1));
}

int Fail(const char* call, const cairn::Status& status) {
  std::fprintf(stderr, "%s: %s\n", call, cairn::ToString(status).c_str());
  return 1;
}

int main(int argc, char** argv) {
  const std::string address = argc > 1 ? argv[1] : "127.0.0.1:7400";
  auto connected = client::Connect({.address = address, .client_name = "get_and_push"});
  if (!connected.ok()) return Fail("connect", connected.status());
  client::CacheClient& node = **connected;

  const cairn::NamespaceSpec spec = Spec();
  auto opened = node.OpenNamespace(spec, {.deadline = seconds(10)});
  if (!opened.ok()) return Fail("open", opened.status());

  std::vector<int32_t> tokens(50);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<cairn::BlockKey> keys =
      cairn::BlockKeyChain(opened->fingerprint).Keys(tokens, spec.layout.block_tokens);

  const uint64_t block_bytes = Compute(0, spec.layout).size();
  PromptKv kv(keys.size(), std::vector<std::byte>(block_bytes));
  const size_t found = Get(node, spec, keys, kv);
  std::printf("the cache had %zu of %zu blocks\n", found, keys.size());

  for (size_t block = found; block < keys.size(); ++block) kv[block] = Compute(block, spec.layout);
  const cairn::Status pushed = Push(node, spec, keys, kv, found);
  if (!pushed.ok()) return Fail("push", pushed);

  PromptKv again(keys.size(), std::vector<std::byte>(block_bytes));
  const size_t stored = Get(node, spec, keys, again);
  std::printf("now it has %zu of %zu, %s\n", stored, keys.size(),
              again == kv ? "all bytes equal" : "bytes DIFFER");
  return again == kv ? 0 : 1;
}
