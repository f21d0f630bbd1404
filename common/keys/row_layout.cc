#include <algorithm>
#include <array>
#include <cstring>

#include "cairn/common/hash.h"
#include "cairn/common/rows.h"
#include "common/hash/xxh3_stream.h"
#include "common/keys/checked_namespace.h"
#include "common/keys/part_codec.h"

namespace cairn {
namespace {

constexpr uint64_t kHalf = 2;  // Bytes of a number of a sink row.

// Codecs that store each row by itself, one after the other (docs/inside/formats/codecs.md). The
// others share something among tokens: int4 and mixed the scales of a channel, cachegen its
// streams.
bool StoresRows(format::Codec codec) {
  switch (codec) {
    case format::Codec::kRaw:
    case format::Codec::kInt8:
    case format::Codec::kFp8:
    case format::Codec::kTurbo:
      return true;
    default:
      return false;
  }
}

Status NoRows(const NamespaceSpec& spec, std::string_view why) {
  return Errorf(StatusCode::kUnimplemented,
                "field 'recipe': got '{}', expected one whose rows have fixed places (raw, int8, "
                "fp8 or turbo): {}",
                spec.recipe, why);
}

uint32_t SinksOf(const RecipeCodec& codec) {
  const auto& parameters = codec.info->parameters;
  const bool has = !parameters.empty() && parameters.back().name == "sink";
  return has ? static_cast<uint32_t>(codec.values.back()) : 0;
}

// Bytes of a row that is no sink. `values`: of the plane of values, which may be coded otherwise.
uint64_t RowBytes(const codecs::Codec& codec, const Plane& plane, bool values, uint32_t layer) {
  codecs::SliceShape shape = {.tokens = 1};
  (values ? shape.v_heads : shape.k_heads) = 1;
  (values ? shape.v_dim : shape.k_dim) = plane.dim;
  return codec.MaxEncodedBytes(shape, {.layer = layer, .first_position = 1});
}

void AppendLittle(std::byte*& out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) *out++ = static_cast<std::byte>(value >> (8 * i));
}

}  // namespace

uint64_t HashRows(const RowsInfo& info, std::span<const uint64_t> mask,
                  std::span<const std::byte> rows) {
  // Most groups are small: one pass over a copy is several times as fast as a hash in pieces.
  std::array<std::byte, 4096> small;
  const size_t head_bytes = 24 + 8 * mask.size();
  std::vector<std::byte> large;
  std::byte* head = small.data();
  if (head_bytes + rows.size() > small.size()) {
    large.resize(head_bytes);
    head = large.data();
  }
  std::byte* at = head;
  AppendLittle(at, info.block, 4);
  AppendLittle(at, info.layer, 4);
  AppendLittle(at, info.head, 4);
  AppendLittle(at, static_cast<uint64_t>(info.codec), 4);
  AppendLittle(at, info.slice_xxh3, 8);
  for (const uint64_t word : mask) AppendLittle(at, word, 8);
  if (large.empty()) {
    if (!rows.empty()) std::memcpy(at, rows.data(), rows.size());
    return Xxh3({head, head_bytes + rows.size()});
  }
  Xxh3Stream hash;
  hash.Update(large);
  hash.Update(rows);
  return hash.Digest();
}

Result<RowLayout> RowLayout::Of(const NamespaceSpec& spec) {
  CAIRN_ASSIGN_OR_RETURN(const CheckedNamespace ns, CheckNamespace(spec));
  CAIRN_ASSIGN_OR_RETURN(const PartCodecs codecs, PartCodecsOf(ns));
  if (!spec.layout.IsNative()) return NoRows(spec, "nobody interprets the bytes of this layout");
  if (codecs.selected) return NoRows(spec, "a selection keeps other rows in each head");
  RowLayout out(spec.layout);
  const auto& groups = std::get<NativeLayout>(out.layout_.form).groups;
  for (size_t r = 0; r < ns.recipe.rungs.size(); ++r) {
    const RecipeCodec& codec = ns.recipe.rungs[r].codec;
    Rung rung = {.codec = static_cast<format::Codec>(codec.info->id), .sinks = SinksOf(codec)};
    if (!StoresRows(rung.codec)) {
      return NoRows(spec, fmt::format("'{}' stores tokens together", codec.info->name));
    }
    uint32_t layer = 0;
    for (const LayerGroup& group : groups) {
      if (group.planes.size() > SliceRows::kMaxPlanes) {
        return NoRows(spec, fmt::format("layer {} has {} planes, expected at most {}", layer,
                                        group.planes.size(), SliceRows::kMaxPlanes));
      }
      auto& bytes = rung.row_bytes.emplace_back();
      for (size_t p = 0; p < group.planes.size(); ++p) {
        const Plane& plane = group.planes[p];
        if (plane.heads != out.heads()) {
          return NoRows(spec, fmt::format("plane '{}' of layer {} has {} heads, expected {}",
                                          plane.name, layer, plane.heads, out.heads()));
        }
        bytes.push_back(rung.codec == format::Codec::kRaw
                            ? uint64_t{plane.dim} * DTypeBytes(plane.dtype)
                            : RowBytes(*codecs.rungs[r], plane, p == 1, layer));
      }
      layer += group.count;
    }
    out.rungs_.push_back(std::move(rung));
  }
  return out;
}

const LayerGroup* RowLayout::GroupOf(uint32_t layer, size_t* index) const {
  const auto& groups = std::get<NativeLayout>(layout_.form).groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (layer < groups[i].count) {
      *index = i;
      return &groups[i];
    }
    layer -= groups[i].count;
  }
  return nullptr;
}

Status RowLayout::Check(uint32_t layer, std::span<const RowGroup> groups, uint32_t blocks) const {
  size_t index = 0;
  const LayerGroup* const planes = GroupOf(layer, &index);
  if (planes == nullptr || planes->planes.empty()) {
    return InvalidArgument("field 'layer': got {}, expected one of the layout's {}, with planes",
                           layer, layers());
  }
  if (groups.empty() || groups.size() > kMaxRowGroups) {
    return InvalidArgument("field 'rows': got {} groups, expected 1 to {}", groups.size(),
                           kMaxRowGroups);
  }
  uint64_t widest = 0;  // Bytes of a row in all planes, at most.
  for (const Rung& rung : rungs_) {
    uint64_t row = 0;
    for (size_t p = 0; p < planes->planes.size(); ++p) {
      const uint64_t sink = rung.sinks * kHalf * planes->planes[p].dim;
      row += std::max(rung.row_bytes[index][p], sink);
    }
    widest = std::max(widest, row);
  }
  const uint32_t last = block_tokens() % 64;  // Bits of the last word; 0: all.
  for (size_t i = 0; i < groups.size(); ++i) {
    const RowGroup& group = groups[i];
    if (group.block >= blocks) {
      return InvalidArgument("field 'rows[{}].block': got {}, expected one of the lease's {}", i,
                             group.block, blocks);
    }
    if (group.head >= heads()) {
      return InvalidArgument("field 'rows[{}].head': got {}, expected one of the layout's {}", i,
                             group.head, heads());
    }
    if (i > 0 &&
        std::pair(groups[i - 1].block, groups[i - 1].head) >= std::pair(group.block, group.head)) {
      return InvalidArgument(
          "field 'rows[{}]': got block {} head {} after block {} head {}, expected ascending order",
          i, group.block, group.head, groups[i - 1].block, groups[i - 1].head);
    }
    if (group.mask.size() != mask_words()) {
      return InvalidArgument("field 'rows[{}].mask': got {} words, expected {}", i,
                             group.mask.size(), mask_words());
    }
    if (last != 0 && group.mask.back() >> last != 0) {
      return InvalidArgument("field 'rows[{}].mask': got a bit after the last of {} tokens", i,
                             block_tokens());
    }
    const uint64_t rows = group.rows();
    if (rows == 0) {
      return InvalidArgument("field 'rows[{}].mask': got no bit, expected at least one", i);
    }
    if (rows * widest > kMaxRowGroupBytes) {
      return InvalidArgument("field 'rows[{}].mask': got {} rows of {} bytes, expected at most {}",
                             i, rows, widest, kMaxRowGroupBytes);
    }
  }
  return OkStatus();
}

bool RowLayout::IsSize(uint32_t layer, format::Codec codec, std::span<const uint64_t> mask,
                       uint64_t bytes) const {
  size_t index = 0;
  const LayerGroup* const group = GroupOf(layer, &index);
  const auto rung = std::find_if(rungs_.begin(), rungs_.end(),
                                 [&](const Rung& known) { return known.codec == codec; });
  if (group == nullptr || rung == rungs_.end()) return false;
  uint64_t rows = 0, at_sinks = 0;
  SliceRows::ForEachToken(mask, [&](uint32_t token) {
    ++rows;
    at_sinks += token < rung->sinks ? 1 : 0;
  });
  for (const uint64_t sinks : {uint64_t{0}, at_sinks}) {
    uint64_t size = 0;
    for (size_t p = 0; p < group->planes.size(); ++p) {
      size += sinks * kHalf * group->planes[p].dim + (rows - sinks) * rung->row_bytes[index][p];
    }
    if (size == bytes) return true;
  }
  return false;
}

Result<SliceRows> RowLayout::In(uint32_t layer, const format::PartRect& part, format::Codec codec,
                                uint64_t slice_bytes) const {
  size_t index = 0;
  const LayerGroup* const group = GroupOf(layer, &index);
  const auto wrong = [&](std::string_view what) {
    return Errorf(StatusCode::kDataLoss, "rows: slice of layer {}: {}", layer, what);
  };
  if (group == nullptr || part.head_end > heads() || part.head_begin >= part.head_end) {
    return wrong("not in the layout");
  }
  const auto rung = std::find_if(rungs_.begin(), rungs_.end(),
                                 [&](const Rung& known) { return known.codec == codec; });
  if (rung == rungs_.end()) return wrong("a codec that is not in the recipe");
  const uint64_t part_heads = uint64_t{part.head_end} - part.head_begin;
  // Only the block at position 0 has sinks, and its slices are longer by them.
  for (const uint32_t sinks : {0u, std::min(rung->sinks, block_tokens())}) {
    SliceRows rows(block_tokens(), part.head_begin, static_cast<uint32_t>(part_heads));
    uint64_t at = 0;
    for (size_t p = 0; p < group->planes.size(); ++p) {
      SliceRows::PlaneRows plane = {.offset = at,
                                    .row_bytes = rung->row_bytes[index][p],
                                    .sink_bytes = kHalf * group->planes[p].dim,
                                    .sinks = sinks};
      plane.head_bytes =
          plane.sinks * plane.sink_bytes + (block_tokens() - plane.sinks) * plane.row_bytes;
      rows.Add(plane);
      at += part_heads * plane.head_bytes;
    }
    if (at == slice_bytes) return rows;
  }
  return wrong(fmt::format("a size of {} bytes that no writer stores", slice_bytes));
}

}  // namespace cairn
