#include "services/worker/methods/selections/selected_rows.h"

#include <bit>
#include <cstring>

#include "common/format/selected_slice.h"
#include "services/worker/methods/selections/selected_slice_codec.h"

namespace cairn::worker {

Status SelectedSlices::Append(const ComputedBlock& block, const KvCodec& codec, int layer,
                              KvCodec::Scratch& scratch, std::vector<std::byte>* part) const {
  const SelectedRows& rows = rows_;
  const KvLayout& kv = rows.kv;
  const auto heads = static_cast<size_t>(kv.kv_heads);
  const size_t words = format::MaskWords(static_cast<uint32_t>(kv.block_tokens));
  const size_t first_head = static_cast<size_t>(layer) * heads;
  const std::span<const uint64_t> masks =
      std::span(rows.masks).subspan(first_head * words, heads * words);
  RowsReader read;
  if (rows.prefix != nullptr) {
    read = [&](uint32_t head, int64_t count, uint16_t* k, uint16_t* v) {
      rows.prefix->CopyRows(layer, static_cast<int>(head), rows.first_row[first_head + head], count,
                            k, v);
    };
  } else {
    read = [&, plane = block.page.subspan(static_cast<size_t>(layer) * kv.layer_bytes(),
                                          kv.layer_bytes())](uint32_t head, int64_t, uint16_t* k,
                                                             uint16_t* v) {
      for (size_t word = 0; word < words; ++word) {
        for (uint64_t left = masks[head * words + word]; left != 0; left &= left - 1) {
          const size_t token = word * 64 + static_cast<size_t>(std::countr_zero(left));
          const std::byte* row = plane.data() + head * kv.head_bytes() + token * kv.row_bytes();
          std::memcpy(k, row, kv.row_bytes());
          std::memcpy(v, row + kv.plane_bytes(), kv.row_bytes());
          k += kv.head_dim;
          v += kv.head_dim;
        }
      }
    };
  }
  return AppendSelectedSlice(codec,
                             {.layer = layer,
                              .first_position = block.first_position,
                              .heads = static_cast<uint32_t>(kv.kv_heads),
                              .block_tokens = static_cast<uint32_t>(kv.block_tokens)},
                             kv.head_dim, masks, read, scratch, part);
}

}  // namespace cairn::worker
