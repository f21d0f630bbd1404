#include "services/worker/session/kv_codec.h"

#include <chrono>
#include <utility>

#include "common/keys/part_codec.h"
#include "kernels/codecs/slice_forms.h"

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

// The form of whole blocks, with numbers where pages have them, or of kept rows of one head, one
// after the other.
std::optional<kernels::SliceForm> FormOf(const RecipeCodec& codec, const KvLayout& kv,
                                         bool selected) {
  std::optional<kernels::SliceForm> form = codecs::SliceFormOf(codec.info->name, codec.values);
  if (!form) return form;
  for (kernels::PlaneForm* const plane : {&form->k, &form->v}) {
    plane->heads = selected ? 1 : kv.kv_heads;
    plane->dim = kv.head_dim;
    plane->head_stride = int64_t{kv.block_tokens} * kv.head_dim;
    plane->token_stride = kv.head_dim;
  }
  return form;
}

}  // namespace

Result<std::unique_ptr<KvCodec>> KvCodec::Create(const CheckedNamespace& ns, const KvLayout& kv,
                                                 const Clock& clock) {
  CAIRN_ASSIGN_OR_RETURN(const PartCodecs codecs, PartCodecsOf(ns));
  CAIRN_CHECK(codecs.rungs.size() == ns.recipe.rungs.size());  // The layout is native.
  std::vector<Rung> rungs(codecs.rungs.size());
  for (size_t i = 0; i < rungs.size(); ++i) {
    Rung& rung = rungs[i];
    rung.id = static_cast<format::Codec>(ns.recipe.rungs[i].codec.info->id);
    rung.codec = codecs.rungs[i];
    rung.form = worker::FormOf(ns.recipe.rungs[i].codec, kv, codecs.selected);
    // The usual size of a codec with a fixed size, not the first block's, whose first token some
    // recipes store in full. Else a bound says little: entropy coding brings KV to a quarter or
    // less.
    rung.typical_slice_bytes =
        rung.codec->FixedSize()
            ? rung.codec->MaxEncodedBytes(ShapeOf(kv),
                                          PlaceOf(0, static_cast<uint64_t>(kv.block_tokens)))
            : kv.layer_bytes() / 4;
  }
  return std::unique_ptr<KvCodec>(
      new KvCodec(kv, ns.recipe.Lossy(), codecs.selected, std::move(rungs), clock));
}

KvCodec::KvCodec(const KvLayout& kv, bool lossy, bool selected, std::vector<Rung> rungs,
                 const Clock& clock)
    : kv_(kv),
      lossy_(lossy),
      selected_(selected),
      rungs_(std::move(rungs)),
      shape_(ShapeOf(kv)),
      clock_(clock) {}

const KvCodec::Rung* KvCodec::Find(format::Codec id) const {
  for (const Rung& rung : rungs_) {
    if (rung.id == id) return &rung;
  }
  return nullptr;
}

const kernels::SliceForm* KvCodec::FormOf(format::Codec id) const {
  const Rung* const rung = Find(id);
  return selected_ || rung == nullptr || !rung->form ? nullptr : &*rung->form;
}

void KvCodec::CountEncoded(uint64_t bytes_in, uint64_t bytes_out, Duration time) const {
  rungs_.front().counters->encode.Add(bytes_in, bytes_out, time);
}

void KvCodec::CountDecoded(format::Codec id, uint64_t bytes_in, uint64_t bytes_out,
                           Duration time) const {
  Find(id)->counters->decode.Add(bytes_in, bytes_out, time);
}

uint64_t KvCodec::MaxSliceBytes(int layer, uint64_t first_position) const {
  return rungs_.front().codec->MaxEncodedBytes(shape_, PlaceOf(layer, first_position));
}

bool KvCodec::IsSliceBytes(format::Codec id, int layer, uint64_t first_position,
                           uint64_t bytes) const {
  const Rung* const rung = Find(id);
  if (rung == nullptr) return false;
  const uint64_t most = rung->codec->MaxEncodedBytes(shape_, PlaceOf(layer, first_position));
  return rung->codec->FixedSize() ? bytes == most : bytes > 0 && bytes <= most;
}

Result<size_t> KvCodec::Encode(int layer, uint64_t first_position, std::span<const std::byte> page,
                               std::span<std::byte> out, Scratch& scratch) const {
  const Rung& rung = rungs_.front();
  scratch.resize(rung.codec->ScratchBytes(shape_));
  const auto [k, v] = PlanesOf<codecs::Plane>(kv_, page);
  const TimePoint start = clock_.Now();
  const codecs::EncodeResult result =
      rung.codec->Encode(k, v, kv_.block_tokens, PlaceOf(layer, first_position), out, scratch);
  if (result.status == codecs::CodecStatus::kOk) {
    rung.counters->encode.Add(page.size(), result.bytes, clock_.Now() - start);
    return result.bytes;
  }
  return InvalidArgument("layer {} of the block at position {}: {} numbers are not finite ({})",
                         layer, first_position, result.non_finite,
                         std::string(codecs::Name(result.status)));
}

Status KvCodec::Decode(format::Codec id, int layer, uint64_t first_position,
                       std::span<const std::byte> in, std::span<std::byte> page,
                       Scratch& scratch) const {
  const Rung* const rung = Find(id);
  CAIRN_CHECK(rung != nullptr);
  scratch.resize(rung->codec->ScratchBytes(shape_));
  const auto [k, v] = PlanesOf<codecs::MutablePlane>(kv_, page);
  const TimePoint start = clock_.Now();
  const codecs::CodecStatus status =
      rung->codec->Decode(in, k, v, kv_.block_tokens, PlaceOf(layer, first_position), scratch);
  if (status == codecs::CodecStatus::kOk) {
    rung->counters->decode.Add(in.size(), page.size(), clock_.Now() - start);
    return OkStatus();
  }
  return Errorf(StatusCode::kDataLoss, "layer {} of the block at position {}: {} bytes, {}", layer,
                first_position, in.size(), std::string(codecs::Name(status)));
}

namespace {

codecs::SliceShape ShapeOf(const KvLayout& kv, const KvCodec::RowsPlace& place) {
  return {
      .tokens = place.rows, .k_heads = 1, .k_dim = kv.head_dim, .v_heads = 1, .v_dim = kv.head_dim};
}

// All that codecs ask of a position is whether it is the first.
codecs::SlicePlace PlaceOf(const KvLayout& kv, const KvCodec::RowsPlace& place) {
  return {.layer = place.layer, .first_position = place.sequence_start ? 0 : kv.block_tokens};
}

template <typename View, typename Number>
View RowsView(const KvLayout& kv, const KvCodec::RowsPlace& place, Number* rows) {
  return {.data = rows,
          .heads = 1,
          .dim = kv.head_dim,
          .head_stride = place.rows * kv.head_dim,
          .token_stride = kv.head_dim};
}

uint64_t HalfBytes(const codecs::SliceShape& shape) {
  return static_cast<uint64_t>(shape.HalfBytes());
}

}  // namespace

size_t KvCodec::MaxRowsBytes(const RowsPlace& place) const {
  return rungs_.front().codec->MaxEncodedBytes(ShapeOf(kv_, place), PlaceOf(kv_, place));
}

Result<size_t> KvCodec::EncodeRows(const RowsPlace& place, const uint16_t* k, const uint16_t* v,
                                   std::span<std::byte> out, Scratch& scratch) const {
  const Rung& rung = rungs_.front();
  const codecs::SliceShape shape = ShapeOf(kv_, place);
  scratch.resize(rung.codec->ScratchBytes(shape));
  const TimePoint start = clock_.Now();
  const codecs::EncodeResult result = rung.codec->Encode(
      RowsView<codecs::Plane>(kv_, place, k), RowsView<codecs::Plane>(kv_, place, v), place.rows,
      PlaceOf(kv_, place), out, scratch);
  if (result.status == codecs::CodecStatus::kOk) {
    rung.counters->encode.Add(HalfBytes(shape), result.bytes, clock_.Now() - start);
    return result.bytes;
  }
  return InvalidArgument("layer {}: {} numbers of {} rows are not finite ({})", place.layer,
                         result.non_finite, place.rows, std::string(codecs::Name(result.status)));
}

Status KvCodec::DecodeRows(const RowsPlace& place, std::span<const std::byte> in, uint16_t* k,
                           uint16_t* v, Scratch& scratch) const {
  const Rung& rung = rungs_.front();
  const codecs::SliceShape shape = ShapeOf(kv_, place);
  scratch.resize(rung.codec->ScratchBytes(shape));
  const TimePoint start = clock_.Now();
  const codecs::CodecStatus status = rung.codec->Decode(
      in, RowsView<codecs::MutablePlane>(kv_, place, k),
      RowsView<codecs::MutablePlane>(kv_, place, v), place.rows, PlaceOf(kv_, place), scratch);
  if (status == codecs::CodecStatus::kOk) {
    rung.counters->decode.Add(in.size(), HalfBytes(shape), clock_.Now() - start);
    return OkStatus();
  }
  return Errorf(StatusCode::kDataLoss, "layer {}: {} rows in {} bytes, {}", place.layer, place.rows,
                in.size(), std::string(codecs::Name(status)));
}

std::vector<KvCodec::Stats> KvCodec::GetStats() const {
  std::vector<Stats> all;
  for (const Rung& rung : rungs_) {
    all.push_back({.codec = std::string(rung.codec->name()),
                   .encode = rung.counters->encode.Total(),
                   .decode = rung.counters->decode.Total()});
  }
  return all;
}

void KvCodec::Counter::Add(uint64_t bytes_in, uint64_t bytes_out, Duration time) {
  bytes_in_.fetch_add(bytes_in, std::memory_order_relaxed);
  bytes_out_.fetch_add(bytes_out, std::memory_order_relaxed);
  nanoseconds_.fetch_add(std::chrono::nanoseconds(time).count(), std::memory_order_relaxed);
}

KvCodec::Work KvCodec::Counter::Total() const {
  return {
      .bytes_in = bytes_in_.load(std::memory_order_relaxed),
      .bytes_out = bytes_out_.load(std::memory_order_relaxed),
      .seconds = Seconds(std::chrono::nanoseconds(nanoseconds_.load(std::memory_order_relaxed)))};
}

}  // namespace cairn::worker
