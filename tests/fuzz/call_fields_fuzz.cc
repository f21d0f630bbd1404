// Any bytes as the requests of a node's calls: an error that the edge gives, or values in the
// ranges that the engine counts on.
//
// First byte: which request. The rest is the message, or the field.

#include <cmath>

#include "cairn/v1/cache.pb.h"
#include "common/rpc/trace.h"
#include "common/tenants/tenant_name.h"
#include "protocol/wire/convert.h"
#include "services/cache/serve/rpc/request_fields.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using fuzz::Expect;

Layout NativeOf(uint32_t layers, uint32_t heads) {
  Layout layout{.block_tokens = 16, .form = {}};
  layout.form = NativeLayout{
      .groups = {{.count = layers, .planes = {{"k", heads, 32, DType::kF16}}}}, .kv_heads = heads};
  return layout;
}
Layout OpaqueOf(uint32_t parts) {
  Layout layout{.block_tokens = 16, .form = {}};
  layout.form = OpaqueLayout{.description = "d", .max_part_bytes = 4096, .parts = parts};
  return layout;
}

void Reserve(const v1::ReserveRequest& request) {
  static const Layout layouts[] = {NativeOf(4, 2), NativeOf(65535, 1024), OpaqueOf(3)};
  for (const Layout& layout : layouts) {
    const auto parts = cache::ToParts(request, layout);
    if (!parts.ok()) continue;
    Expect(parts->size() == static_cast<size_t>(request.parts_size()));
    const format::PartRect grid = layout.WholeRect();
    for (const auto& part : *parts) {
      Expect(part.part.layer_begin < part.part.layer_end);
      Expect(part.part.head_begin < part.part.head_end);
      Expect(part.part.layer_end <= grid.layer_end && part.part.head_end <= grid.head_end);
      Expect(part.bytes >= 1 && part.bytes <= cache::kMaxPartBytes);
      Expect(part.first_position <= 1ull << 40);
      Expect(std::isfinite(part.compute_seconds) && part.compute_seconds >= 0);
    }
  }
}

// 4 layers of 2 heads.
RowLayout RowsOf(std::string recipe, uint32_t block_tokens) {
  NamespaceSpec spec;
  spec.model = spec.revision = spec.numerics = "x";
  spec.recipe = std::move(recipe);
  spec.layout.block_tokens = block_tokens;
  spec.layout.form = NativeLayout{
      .groups = {{.count = 4, .planes = {{"k", 2, 32, DType::kF16}, {"v", 2, 32, DType::kF16}}}},
      .kv_heads = 2};
  return *RowLayout::Of(spec);
}
// The codecs of the layouts below: the one of 64 tokens is int8, whose rows have a scale.
format::Codec SliceCodec(const RowLayout& layout) {
  return layout.block_tokens() == 64 ? format::Codec::kInt8 : format::Codec::kRaw;
}
uint64_t SliceBytes(const RowLayout& layout) {
  const uint64_t row = layout.block_tokens() == 64 ? 34 : 64;
  return uint64_t{2} * 2 * layout.block_tokens() * row;
}

void Fetch(const v1::FetchRequest& request) {
  const auto range = cache::ToFetchRange(request);
  if (!range.ok()) return;
  Expect(request.has_lookup() == (range->lease == 0));
  Expect(range->block_end == 0 || range->block_begin < range->block_end);
  Expect(range->layer_end == 0 || range->layer_begin < range->layer_end);
  const auto rows = cache::ToRowGroups(request);
  if (!rows.ok()) return;
  Expect(rows->size() == static_cast<size_t>(request.rows_size()) && rows->size() <= kMaxRowGroups);
  Expect(rows->empty() || (!request.has_lookup() && range->layer_end == range->layer_begin + 1));
  // The engine's next check: groups that it accepts address rows within the slice.
  static const RowLayout layouts[] = {RowsOf("raw", 16), RowsOf("raw", 128), RowsOf("int8", 64)};
  for (const RowLayout& layout : layouts) {
    if (!layout.Check(range->layer_begin, *rows, 1000).ok()) continue;
    const auto slice =
        layout.In(range->layer_begin, {0, 4, 0, 2}, SliceCodec(layout), SliceBytes(layout));
    Expect(slice.ok());
    for (const RowGroup& group : *rows) {
      uint64_t total = 0;
      slice->ForEachRun(group.head, group.mask, [&](uint64_t offset, uint64_t bytes) {
        Expect(bytes > 0 && offset + bytes <= SliceBytes(layout));
        total += bytes;
      });
      Expect(total == slice->Bytes(group.head, group.mask));
      Expect(layout.IsSize(range->layer_begin, SliceCodec(layout), group.mask, total));
    }
  }
}

void Field(std::string_view text) {
  if (const auto keys = wire::KeysFromProto(text); keys.ok()) {
    Expect(wire::KeysToProto(*keys) == text);
  }
  if (cache::ToSessionToken(text).ok()) Expect(text.size() == sizeof(cache::SessionToken));
  if (const auto parent = cache::ToOptionalDigest(text, "parent"); parent.ok()) {
    Expect(parent->has_value() == !text.empty());
  }
  if (cairn::CheckTenant(text).ok()) Expect(!text.empty() && text.size() <= 128);
  if (cache::CheckClientName(text).ok()) Expect(text.size() <= cache::kMaxClientName);
  if (rpc::IsTrace(text)) {
    // It goes into logs and answers as it is.
    for (const char c : text) Expect(std::isalnum(static_cast<unsigned char>(c)) || c == '-');
    Expect(text.size() <= 64);
  }
}

template <typename Message, typename Use>
void With(std::string_view bytes, Use use) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) use(message);
}

}  // namespace

CAIRN_FUZZ_ENTRY(call_fields)(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  switch (input.U8() % 4) {
    case 0:
      With<v1::ReserveRequest>(input.Rest(), Reserve);
      break;
    case 1:
      With<v1::FetchRequest>(input.Rest(), Fetch);
      break;
    case 2:
      With<v1::PartResult>(input.Rest(), [](const v1::PartResult& result) {
        Expect(wire::FromProto(result).ok() == (result.code() == 0));
      });
      break;
    default:
      Field(input.Rest());
  }
  return 0;
}
