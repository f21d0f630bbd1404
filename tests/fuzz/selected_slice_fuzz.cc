// Any bytes as the slice of a segment's block: masks, lengths and rows are refused or decoded,
// within the slice and the rows that the masks say.
//
// First byte: bits 0 to 2 the codec, bit 3 the block's first position (0 or 64), bits 4 and 5 heads
// minus one, bit 6: blocks of 16 tokens instead of 64. The rest is the slice.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "services/worker/methods/selections/selected_slice_codec.h"
#include "services/worker/session/worker_namespace.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using namespace cairn::worker;

constexpr const char* kCodecs[] = {"raw",           "int8:group=16,sink=1", "fp8:sink=1",
                                   "int4:group=32", "mixed:group=32",       "turbo:bits=3",
                                   "cachegen",      "turbo:bits=4,v=2"};

KvLayout LayoutOf(bool small) {
  return {.layers = 2, .kv_heads = 4, .head_dim = 64, .block_tokens = small ? 16 : 64};
}

std::unique_ptr<KvCodec> Make(const char* codec, bool small) {
  NamespaceInputs inputs;
  inputs.model = "m";
  inputs.kv = LayoutOf(small);
  inputs.numerics = "n";
  inputs.recipe = std::string("random:keep=0.5+") + codec;
  const auto spec = WorkerNamespace(inputs);
  if (!spec.ok()) std::abort();
  auto made = KvCodec::Create(*spec, inputs.kv, SteadyClock::Get());
  if (!made.ok()) std::abort();
  return *std::move(made);
}

}  // namespace

CAIRN_FUZZ_ENTRY(selected_slice)(const uint8_t* data, size_t size) {
  static const auto codecs = [] {
    std::vector<std::unique_ptr<KvCodec>> all;
    for (const bool small : {false, true}) {
      for (const char* codec : kCodecs) all.push_back(Make(codec, small));
    }
    return all;
  }();
  if (size == 0) return 0;
  const bool small = (data[0] & 64) != 0;
  const KvCodec& codec = *codecs[(small ? 8 : 0) + (data[0] & 7)];
  const SelectedSlicePlace place{.layer = 1,
                                 .first_position = (data[0] & 8) != 0 ? 64u : 0u,
                                 .heads = 1u + (data[0] >> 4 & 3),
                                 .block_tokens = small ? 16u : 64u};
  // A copy of exactly its size, for the sanitizer's red zones.
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> slice(bytes + 1, bytes + size);
  const auto heads = ParseSelectedSlice(codec, place, slice);
  if (!heads.ok()) return 0;
  if (heads->size() != place.heads) std::abort();
  KvCodec::Scratch scratch;
  for (const SelectedHead& head : *heads) {
    if (head.place.rows < 0 || head.place.rows > place.block_tokens) std::abort();
    if (head.place.rows == 0) continue;
    if (head.bytes.data() < slice.data() ||
        head.bytes.data() + head.bytes.size() > slice.data() + slice.size()) {
      std::abort();
    }
    std::vector<uint16_t> k(static_cast<size_t>(head.place.rows) * 64), v(k.size());
    if (!codec.DecodeRows(head.place, head.bytes, k.data(), v.data(), scratch).ok()) continue;
    for (const auto* rows : {&k, &v}) {
      for (const uint16_t x : *rows) {
        if (!codec.raw() && (x & 0x7c00) == 0x7c00) std::abort();
      }
    }
  }
  return 0;
}
