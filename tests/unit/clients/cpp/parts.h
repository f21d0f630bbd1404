#pragma once
// Namespaces and sealed parts for tests of clients.

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"

namespace cairn::client::testing {

// 4 layers (the third without KV) of 6 heads x 8 numbers, f16, blocks of 16 tokens: 3 KiB a slice.
inline NamespaceSpec SmallSpec(const std::string& tenant = "default") {
  const std::vector<Plane> kv = {{.name = "k", .heads = 6, .dim = 8, .dtype = DType::kF16},
                                 {.name = "v", .heads = 6, .dim = 8, .dtype = DType::kF16}};
  NamespaceSpec spec;
  spec.tenant = tenant;
  spec.model = "small";
  spec.revision = "1";
  spec.layout.block_tokens = 16;
  spec.layout.form = NativeLayout{.groups = {{2, kv}, {1, {}}, {1, kv}}, .kv_heads = 6};
  spec.numerics = "test";
  return spec;
}

// As SmallSpec with `dim` numbers per head: slices larger than a frame.
inline NamespaceSpec LargeSpec(uint32_t dim) {
  NamespaceSpec spec = SmallSpec();
  spec.model = "large";
  for (LayerGroup& group : std::get<NativeLayout>(spec.layout.form).groups) {
    for (Plane& plane : group.planes) plane.dim = dim;
  }
  return spec;
}

inline std::vector<int32_t> Tokens(size_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::vector<BlockKey> KeysFor(const NamespaceSpec& spec, size_t blocks, int32_t first = 0) {
  return BlockKeyChain(Fingerprint(spec))
      .Keys(Tokens(blocks * spec.layout.block_tokens, first), spec.layout.block_tokens);
}

// The bytes of one layer's slice: a function of its place, so that a reader can tell what it should
// have got.
inline std::vector<std::byte> SliceData(const NamespaceSpec& spec, const BlockKey& key,
                                        uint32_t layer, const format::PartRect& rect) {
  std::vector<std::byte> out(spec.layout.SliceBytes(layer, rect.head_begin, rect.head_end));
  uint64_t seed = 0;
  std::memcpy(&seed, key.bytes.data(), sizeof(seed));
  std::mt19937_64 random(seed ^ (layer * 1000003u + rect.head_begin));
  size_t at = 0;
  for (; at + 8 <= out.size(); at += 8) {
    const uint64_t value = random();
    std::memcpy(out.data() + at, &value, 8);
  }
  return out;
}

// A sealed part of a block.
inline std::vector<std::byte> SealedPart(const NamespaceSpec& spec, const BlockKey& key,
                                         const format::PartRect& rect) {
  std::vector<uint64_t> lengths;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    lengths.push_back(spec.layout.SliceBytes(layer, rect.head_begin, rect.head_end));
  }
  std::vector<std::byte> part(format::PartBytes(lengths));
  size_t at = format::HeaderBytes(static_cast<uint32_t>(lengths.size()));
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    const std::vector<std::byte> data = SliceData(spec, key, layer, rect);
    if (!data.empty()) std::memcpy(part.data() + at, data.data(), data.size());
    at += data.size();
  }
  format::SealPart(part, format::Codec::kRaw, rect, static_cast<uint16_t>(spec.layout.block_tokens),
                   lengths);
  return part;
}

// Parts of a chain of blocks, each cut into these rectangles (default: one part).
struct Chain {
  Chain(const NamespaceSpec& spec, size_t blocks, std::vector<format::PartRect> rects = {},
        int32_t first = 0)
      : keys(KeysFor(spec, blocks, first)) {
    if (rects.empty()) rects.push_back(spec.layout.WholeRect());
    for (size_t b = 0; b < blocks; ++b) {
      for (const format::PartRect& rect : rects) {
        auto bytes = std::make_shared<std::vector<std::byte>>(SealedPart(spec, keys[b], rect));
        PartToPush part;
        part.key = keys[b];
        if (b > 0) part.parent = keys[b - 1];
        part.first_position = b * spec.layout.block_tokens;
        part.rect = rect;
        part.bytes = *bytes;
        part.hold = bytes;
        parts.push_back(std::move(part));
      }
    }
  }
  std::vector<BlockKey> keys;
  std::vector<PartToPush> parts;
};

// Checks every slice against SliceData and counts.
class CheckingSink final : public FetchSink {
 public:
  CheckingSink(const NamespaceSpec& spec, const std::vector<BlockKey>& keys)
      : spec_(spec), keys_(keys) {}
  Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) override {
    ++slices;
    bytes += data.size();
    const std::vector<std::byte> expected =
        SliceData(spec_, keys_.at(slice.block), slice.layer, slice.part);
    if (!std::equal(data.begin(), data.end(), expected.begin(), expected.end())) ++wrong;
    if (on_slice) on_slice(slice);
    return OkStatus();
  }
  void OnBlockFailed(uint32_t block, MissReason reason) override {
    failed.emplace_back(block, reason);
  }

  std::function<void(const SliceInfo&)> on_slice;
  uint64_t slices = 0, bytes = 0, wrong = 0;
  std::vector<std::pair<uint32_t, MissReason>> failed;

 private:
  const NamespaceSpec spec_;
  const std::vector<BlockKey> keys_;
};

}  // namespace cairn::client::testing
