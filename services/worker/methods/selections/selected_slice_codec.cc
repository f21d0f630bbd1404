#include "services/worker/methods/selections/selected_slice_codec.h"

#include <bit>
#include <cstring>

#include "common/format/selected_slice.h"

namespace cairn::worker {
namespace {

KvCodec::RowsPlace PlaceOf(const SelectedSlicePlace& slice, std::span<const uint64_t> mask) {
  KvCodec::RowsPlace place{.layer = slice.layer};
  place.sequence_start = slice.first_position == 0 && (mask[0] & 1) != 0;
  for (const uint64_t word : mask) place.rows += std::popcount(word);
  return place;
}

}  // namespace

Result<std::vector<SelectedHead>> ParseSelectedSlice(const KvCodec& codec,
                                                     const SelectedSlicePlace& place,
                                                     std::span<const std::byte> slice) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<uint64_t> masks,
                         format::ReadMasks(slice, place.heads, place.block_tokens));
  const uint32_t words = format::MaskWords(place.block_tokens);
  std::span<const std::byte> rest =
      slice.subspan(format::MaskBytes(place.heads, place.block_tokens));
  const auto damaged = [&](uint32_t head, uint64_t wanted) {
    return Errorf(StatusCode::kDataLoss,
                  "layer {} of the block at position {}: head {} has {} bytes, {} are left",
                  place.layer, place.first_position, head, wanted, rest.size());
  };
  std::vector<SelectedHead> heads(place.heads);
  for (uint32_t head = 0; head < place.heads; ++head) {
    SelectedHead& h = heads[head];
    h.place = PlaceOf(place, std::span(masks).subspan(size_t{head} * words, words));
    if (h.place.rows == 0) continue;
    size_t bytes = codec.MaxRowsBytes(h.place);
    if (!codec.rows_fixed_size()) {
      uint32_t length = 0;
      if (rest.size() < sizeof(length)) return damaged(head, sizeof(length));
      std::memcpy(&length, rest.data(), sizeof(length));
      rest = rest.subspan(sizeof(length));
      if (length == 0 || length > bytes) return damaged(head, length);
      bytes = length;
    }
    if (bytes > rest.size()) return damaged(head, bytes);
    h.bytes = rest.first(bytes);
    rest = rest.subspan(bytes);
  }
  if (!rest.empty()) return damaged(place.heads, 0);
  return heads;
}

Status AppendSelectedSlice(const KvCodec& codec, const SelectedSlicePlace& place, int64_t head_dim,
                           std::span<const uint64_t> masks, const RowsReader& read,
                           KvCodec::Scratch& scratch, std::vector<std::byte>* out) {
  const uint32_t words = format::MaskWords(place.block_tokens);
  CAIRN_CHECK(masks.size() == size_t{place.heads} * words);
  format::WriteMasks(masks, out);
  std::vector<uint16_t> rows;
  for (uint32_t head = 0; head < place.heads; ++head) {
    const KvCodec::RowsPlace at = PlaceOf(place, masks.subspan(size_t{head} * words, words));
    if (at.rows == 0) continue;
    const auto numbers = static_cast<size_t>(at.rows * head_dim);
    rows.resize(2 * numbers);
    read(head, at.rows, rows.data(), rows.data() + numbers);
    const size_t length_bytes = codec.rows_fixed_size() ? 0 : sizeof(uint32_t);
    const size_t begin = out->size();
    out->resize(begin + length_bytes + codec.MaxRowsBytes(at));
    CAIRN_ASSIGN_OR_RETURN(
        const size_t bytes,
        codec.EncodeRows(at, rows.data(), rows.data() + numbers,
                         std::span(*out).subspan(begin + length_bytes), scratch));
    out->resize(begin + length_bytes + bytes);
    const auto length = static_cast<uint32_t>(bytes);
    std::memcpy(out->data() + begin, &length, length_bytes);
  }
  return OkStatus();
}

}  // namespace cairn::worker
