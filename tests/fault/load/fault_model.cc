#include "tests/fault/load/fault_model.h"

#include <cstring>

#include "cairn/common/hash.h"

namespace cairn::fault {
namespace {

// SplitMix64 (Steele, Lea, Flood, 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

}  // namespace

FaultModel::FaultModel(const FaultModelOptions& options) : options_(options) {
  spec_.tenant = options.tenant;
  spec_.model = options.model;
  spec_.revision = std::string("1");  // A plain literal trips -Wrestrict of g++ 12.
  spec_.numerics = std::string("none");
  spec_.layout.block_tokens = options.block_tokens;
  NativeLayout native;
  native.kv_heads = options.kv_heads;
  native.groups = {
      {.count = options.layers,
       .planes = {
           {.name = "k", .heads = options.kv_heads, .dim = options.dim, .dtype = DType::kF16},
           {.name = "v", .heads = options.kv_heads, .dim = options.dim, .dtype = DType::kF16}}}};
  spec_.layout.form = native;
  CAIRN_CHECK(Validate(spec_).ok());
  fingerprint_ = Fingerprint(spec_);
}

std::vector<BlockKey> FaultModel::MakePrompt(uint64_t number) const {
  uint64_t state = Mix(number + 1);
  const auto next = [&state](uint64_t bound) { return Mix(state += kGolden) % bound; };
  const uint64_t blocks = 1 + next(options_.depth);
  std::vector<int32_t> tokens;
  for (uint64_t block = 0; block < blocks; ++block) {
    const auto choice =
        static_cast<int32_t>(next(block == 0 ? options_.roots : options_.branching));
    tokens.insert(tokens.end(), options_.block_tokens, choice);
  }
  return BlockKeyChain(fingerprint_).Keys(tokens, options_.block_tokens);
}

void FaultModel::FillSlice(const BlockKey& key, uint32_t layer, const format::PartRect& rect,
                           std::span<std::byte> out) const {
  uint64_t name[2];
  std::memcpy(name, key.bytes.data(), sizeof name);
  size_t at = 0;
  uint64_t plane_number = 0;
  for (const Plane& plane : layout().PlanesOf(layer)) {
    const HeadRange heads = layout().PlaneHeads(plane, rect.head_begin, rect.head_end);
    const size_t cell =
        static_cast<size_t>(options_.block_tokens) * plane.dim * DTypeBytes(plane.dtype);
    for (uint32_t head = heads.begin; head < heads.end; ++head) {
      uint64_t state =
          Mix(name[0] ^
              Mix(name[1] + (static_cast<uint64_t>(layer) << 32 | plane_number << 16 | head)));
      for (size_t i = 0; i < cell; i += sizeof(uint64_t), at += sizeof(uint64_t)) {
        const uint64_t word = Mix(state += kGolden);
        std::memcpy(out.data() + at, &word, sizeof word);
      }
    }
    ++plane_number;
  }
  CAIRN_CHECK(at == out.size());
}

uint64_t FaultModel::PartBytes(const format::PartRect& rect) const {
  std::vector<uint64_t> lengths;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    lengths.push_back(layout().SliceBytes(layer, rect.head_begin, rect.head_end));
  }
  return format::PartBytes(lengths);
}

std::vector<std::byte> FaultModel::MakePart(const BlockKey& key,
                                            const format::PartRect& rect) const {
  std::vector<uint64_t> lengths;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    lengths.push_back(layout().SliceBytes(layer, rect.head_begin, rect.head_end));
  }
  std::vector<std::byte> part(format::PartBytes(lengths));
  size_t at = format::HeaderBytes(static_cast<uint32_t>(lengths.size()));
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    const uint64_t length = lengths[layer - rect.layer_begin];
    FillSlice(key, layer, rect, std::span(part).subspan(at, length));
    at += length;
  }
  format::SealPart(part, format::Codec::kRaw, rect, static_cast<uint16_t>(options_.block_tokens),
                   lengths);
  return part;
}

bool FaultModel::SliceIsRight(const BlockKey& key, const format::PartRect& rect, uint32_t layer,
                              std::span<const std::byte> bytes) const {
  if (bytes.size() != layout().SliceBytes(layer, rect.head_begin, rect.head_end)) return false;
  std::vector<std::byte> expected(bytes.size());
  FillSlice(key, layer, rect, expected);
  return std::memcmp(expected.data(), bytes.data(), bytes.size()) == 0;
}

std::vector<std::byte> FaultModel::RectBytes(const BlockKey& key,
                                             const format::PartRect& rect) const {
  std::vector<std::byte> out;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    std::vector<std::byte> slice(layout().SliceBytes(layer, rect.head_begin, rect.head_end));
    FillSlice(key, layer, rect, slice);
    out.insert(out.end(), slice.begin(), slice.end());
  }
  return out;
}

}  // namespace cairn::fault
