#include "services/worker/session/kv_codec.h"

#include <chrono>
#include <utility>

#include "services/common/keys/part_codec.h"
#include "services/common/recipe/recipe.h"

namespace cairn::worker {
namespace {

codecs::SliceShape ShapeOf(const KvLayout& kv) {
  return {.tokens = kv.block_tokens,
          .k_heads = kv.kv_heads,
          .k_dim = kv.head_dim,
          .v_heads = kv.kv_heads,
          .v_dim = kv.head_dim};
}

codecs::SlicePlace PlaceOf(int layer, uint64_t first_position) {
  return {.layer = layer, .first_position = static_cast<int64_t>(first_position)};
}

// Keys and values of a layer in its page. `View`: codecs::Plane or MutablePlane.
template <typename View, typename Byte>
std::pair<View, View> PlanesOf(const KvLayout& kv, std::span<Byte> page) {
  CAIRN_CHECK(page.size() == kv.layer_bytes());
  auto* numbers = reinterpret_cast<decltype(View::data)>(page.data());
  const View k{.data = numbers,
               .heads = kv.kv_heads,
               .dim = kv.head_dim,
               .head_stride = int64_t{kv.block_tokens} * kv.head_dim,
               .token_stride = kv.head_dim};
  View v = k;
  v.data = numbers + kv.plane_bytes() / sizeof(uint16_t);
  return {k, v};
}

}  // namespace

Result<std::unique_ptr<KvCodec>> KvCodec::Create(const NamespaceSpec& spec, const KvLayout& kv) {
  CAIRN_ASSIGN_OR_RETURN(const format::Codec id, PartCodec(spec));
  CAIRN_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(spec.recipe));
  std::unique_ptr<const codecs::Codec> codec = recipe.rungs.front().codec.Make();
  if (codec == nullptr) {
    return InvalidArgument("field 'recipe': '{}' cannot be made on this machine", spec.recipe);
  }
  for (int layer = 0; layer < kv.layers; ++layer) {
    const std::string why = codec->Supports(ShapeOf(kv), PlaceOf(layer, 0));
    if (!why.empty()) {
      return InvalidArgument("field 'recipe': '{}' cannot store this model's KV: {}", spec.recipe,
                             why);
    }
  }
  return std::unique_ptr<KvCodec>(new KvCodec(kv, id, recipe.Lossy(), std::move(codec)));
}

KvCodec::KvCodec(const KvLayout& kv, format::Codec id, bool lossy,
                 std::unique_ptr<const codecs::Codec> codec)
    : kv_(kv), id_(id), lossy_(lossy), codec_(std::move(codec)), shape_(ShapeOf(kv)) {
  // Not the first block, whose first token some recipes store in full.
  typical_slice_bytes_ = MaxSliceBytes(0, static_cast<uint64_t>(kv.block_tokens));
  // A bound says little then: entropy coding brings KV to a quarter or less.
  if (!codec_->FixedSize()) typical_slice_bytes_ = kv.layer_bytes() / 4;
}

uint64_t KvCodec::MaxSliceBytes(int layer, uint64_t first_position) const {
  return codec_->MaxEncodedBytes(shape_, PlaceOf(layer, first_position));
}

bool KvCodec::IsSliceBytes(int layer, uint64_t first_position, uint64_t bytes) const {
  const uint64_t most = MaxSliceBytes(layer, first_position);
  return codec_->FixedSize() ? bytes == most : bytes > 0 && bytes <= most;
}

Result<size_t> KvCodec::Encode(int layer, uint64_t first_position,
                               std::span<const std::byte> page, std::span<std::byte> out,
                               Scratch& scratch) const {
  scratch.resize(codec_->ScratchBytes(shape_));
  const auto [k, v] = PlanesOf<codecs::Plane>(kv_, page);
  const TimePoint start = SteadyClock::Get().Now();
  const codecs::EncodeResult result =
      codec_->Encode(k, v, kv_.block_tokens, PlaceOf(layer, first_position), out, scratch);
  if (result.status == codecs::CodecStatus::kOk) {
    encoded_.Add(page.size(), result.bytes, SteadyClock::Get().Now() - start);
    return result.bytes;
  }
  return InvalidArgument("layer {} of the block at position {}: {} numbers are not finite ({})",
                         layer, first_position, result.non_finite,
                         std::string(codecs::Name(result.status)));
}

Status KvCodec::Decode(int layer, uint64_t first_position, std::span<const std::byte> in,
                       std::span<std::byte> page, Scratch& scratch) const {
  scratch.resize(codec_->ScratchBytes(shape_));
  const auto [k, v] = PlanesOf<codecs::MutablePlane>(kv_, page);
  const TimePoint start = SteadyClock::Get().Now();
  const codecs::CodecStatus status =
      codec_->Decode(in, k, v, kv_.block_tokens, PlaceOf(layer, first_position), scratch);
  if (status == codecs::CodecStatus::kOk) {
    decoded_.Add(in.size(), page.size(), SteadyClock::Get().Now() - start);
    return OkStatus();
  }
  return Errorf(StatusCode::kDataLoss, "layer {} of the block at position {}: {} bytes, {}", layer,
                first_position, in.size(), std::string(codecs::Name(status)));
}

KvCodec::Stats KvCodec::GetStats() const {
  return {.codec = std::string(codec_->name()),
          .encode = encoded_.Total(),
          .decode = decoded_.Total()};
}

void KvCodec::Counter::Add(uint64_t bytes_in, uint64_t bytes_out, Duration time) {
  bytes_in_.fetch_add(bytes_in, std::memory_order_relaxed);
  bytes_out_.fetch_add(bytes_out, std::memory_order_relaxed);
  nanoseconds_.fetch_add(std::chrono::nanoseconds(time).count(), std::memory_order_relaxed);
}

KvCodec::Work KvCodec::Counter::Total() const {
  return {.bytes_in = bytes_in_.load(std::memory_order_relaxed),
          .bytes_out = bytes_out_.load(std::memory_order_relaxed),
          .seconds = Seconds(std::chrono::nanoseconds(
              nanoseconds_.load(std::memory_order_relaxed)))};
}

}  // namespace cairn::worker
