#include "tools/cairn/size/sizes.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <utility>

#include "cairn/common/part.h"
#include "common/format/selected_slice.h"
#include "common/keys/part_codec.h"
#include "services/cache/store/tier/disk/value_file_map.h"
#include "services/cache/store/tier/host_tier.h"

namespace cairn::cli::size {
namespace {

// A number of half precision next to `x`, for numbers of ordinary size.
uint16_t HalfNear(double x) {
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(x), &exponent);  // In [0.5, 1).
  if (exponent < -13 || fraction == 0) return 0;
  const auto mantissa = static_cast<uint16_t>((fraction - 0.5) * 2048);
  const auto sign = static_cast<uint16_t>(x < 0 ? 0x8000 : 0);
  return static_cast<uint16_t>(sign | (exponent + 14) << 10 | mantissa);
}

// The size that an encoder makes of keys and values that are all normally distributed. Real ones
// compress better, as far as their channels differ.
uint64_t EncodedNormal(const codecs::Codec& codec, const codecs::SliceShape& shape,
                       const codecs::SlicePlace& place) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  const auto k_numbers = static_cast<size_t>(shape.tokens * shape.k_heads * shape.k_dim);
  const auto v_numbers = static_cast<size_t>(shape.tokens * shape.v_heads * shape.v_dim);
  std::vector<uint16_t> numbers(k_numbers + v_numbers);
  for (uint16_t& number : numbers) number = HalfNear(normal(random));
  std::vector<std::byte> out(codec.MaxEncodedBytes(shape, place));
  std::vector<std::byte> scratch(codec.ScratchBytes(shape));
  const codecs::Plane k{numbers.data(), shape.k_heads, shape.k_dim, shape.tokens * shape.k_dim,
                        shape.k_dim};
  const codecs::Plane v{numbers.data() + k_numbers, shape.v_heads, shape.v_dim,
                        shape.tokens * shape.v_dim, shape.v_dim};
  return codec.Encode(k, v, shape.tokens, place, out, scratch).bytes;
}

// Sizes of the slices of one codec, for the blocks after the first one of a sequence.
class Slices {
 public:
  Slices(const Layout& layout, const codecs::Codec* codec,
         const std::optional<RecipeSelection>& selection)
      : layout_(layout), codec_(codec) {
    if (!selection.has_value()) return;
    const selections::ParameterInfo& keep = selection->info->parameters[0];
    keep_ = static_cast<double>(selection->values[0]) / std::pow(10, keep.decimals);
  }

  // REQUIRES: the codec supports the planes.
  uint64_t Bytes(std::span<const Plane> planes, uint32_t layer) {
    if (planes.empty()) return 0;
    if (codec_ == nullptr) return layout_.SliceBytes(layer, 0, layout_.KvHeads());
    codecs::SliceShape shape{.tokens = layout_.block_tokens,
                             .k_heads = planes[0].heads,
                             .k_dim = planes[0].dim,
                             .v_heads = planes[1].heads,
                             .v_dim = planes[1].dim};
    if (!keep_.has_value()) return Encoded(shape, layer);
    // Heads are encoded one by one, with the kept rows as their tokens.
    certainty_ = Certainty::kEstimated;
    const auto heads = static_cast<uint32_t>(shape.k_heads);
    shape.k_heads = shape.v_heads = 1;
    const double rows = *keep_ * static_cast<double>(Encoded(shape, layer));
    const double length = codec_->FixedSize() ? 0 : sizeof(uint32_t);
    return format::MaskBytes(heads, layout_.block_tokens) +
           static_cast<uint64_t>(std::llround(heads * (rows + length)));
  }

  Certainty certainty() const { return certainty_; }

 private:
  uint64_t Encoded(const codecs::SliceShape& shape, uint32_t layer) {
    const codecs::SlicePlace place{.layer = layer, .first_position = layout_.block_tokens};
    if (codec_->FixedSize()) return codec_->MaxEncodedBytes(shape, place);
    certainty_ = Certainty::kEstimated;
    return EncodedNormal(*codec_, shape, place);
  }

  const Layout& layout_;
  const codecs::Codec* const codec_;  // nullptr: raw, which takes any planes.
  std::optional<double> keep_;
  Certainty certainty_ = Certainty::kExact;
};

BlockSize SizeOfBlock(const Layout& layout, const codecs::Codec* codec,
                      const std::optional<RecipeSelection>& selection) {
  Slices slices(layout, codec, selection);
  BlockSize size;
  size.header_bytes = format::HeaderBytes(layout.Layers());
  size.bytes = size.header_bytes;
  uint32_t layer = 0;
  // Layers of a group are alike, and sizes do not depend on the layer.
  for (const LayerGroup& group : std::get<NativeLayout>(layout.form).groups) {
    size.bytes += group.count * slices.Bytes(group.planes, layer);
    layer += group.count;
  }
  size.certainty = slices.certainty();
  return size;
}

}  // namespace

uint64_t RecipeSize::HostRoom() const { return cache::HostRoom(host.bytes); }

uint64_t RecipeSize::DiskRoom() const {
  return cache::disk::PagesFor(disk.bytes) * cache::disk::kPageBytes;
}

Result<RecipeSize> SizeOf(const NativeLayout& layout, uint32_t block_tokens,
                          const std::string& recipe) {
  NamespaceSpec spec;
  spec.model = "model";
  spec.revision = "revision";
  spec.layout = {.block_tokens = block_tokens, .form = layout};
  spec.recipe = recipe;
  spec.numerics = "any";
  CAIRN_ASSIGN_OR_RETURN(const CheckedNamespace ns, CheckNamespace(spec));
  CAIRN_ASSIGN_OR_RETURN(const PartCodecs codecs, PartCodecsOf(ns));
  const auto codec_of = [&](format::Codec id, size_t rung) {
    const bool raw = id == format::Codec::kRaw && !codecs.selected;
    return raw ? nullptr : codecs.rungs[rung].get();
  };
  RecipeSize size;
  size.recipe = ns.recipe.Canonical();
  size.host = SizeOfBlock(spec.layout, codec_of(codecs.pushed, 0), ns.recipe.selection);
  size.disk = codecs.IsLadder()
                  ? SizeOfBlock(spec.layout, codec_of(codecs.on_disk, codecs.rungs.size() - 1),
                                std::nullopt)
                  : size.host;
  return size;
}

uint64_t BlocksInHost(uint64_t capacity_bytes, uint64_t room) {
  const uint64_t pages = capacity_bytes / cache::kHostPageBytes * cache::kHostPageBytes;
  if (pages == 0) return 0;
  const uint64_t segment = cache::HostSegmentBytes(0, pages);
  return pages / segment * (segment / room) + pages % segment / room;
}

}  // namespace cairn::cli::size
