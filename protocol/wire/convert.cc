#include "protocol/wire/convert.h"

#include <algorithm>
#include <limits>

namespace cairn::wire {
namespace {

Result<DType> DTypeFromProto(v1::DType dtype, const std::string& field) {
  switch (dtype) {
    case v1::DTYPE_F16:
      return DType::kF16;
    case v1::DTYPE_BF16:
      return DType::kBF16;
    case v1::DTYPE_F32:
      return DType::kF32;
    case v1::DTYPE_F8E4M3:
      return DType::kF8E4M3;
    case v1::DTYPE_I8:
      return DType::kI8;
    default:
      return InvalidArgument("field '{}': got {}, expected DTYPE_F16, BF16, F32, F8E4M3 or I8",
                             field, static_cast<int>(dtype));
  }
}

Result<KeyRotation> RotationFromProto(v1::KeyRotation rotation) {
  switch (rotation) {
    case v1::KEY_ROTATION_UNSPECIFIED:
    case v1::KEY_ROTATION_AFTER_ROPE:
      return KeyRotation::kAfterRope;
    case v1::KEY_ROTATION_BEFORE_ROPE:
      return KeyRotation::kBeforeRope;
    default:
      return InvalidArgument(
          "field 'layout.native.key_rotation': got {}, expected KEY_ROTATION_AFTER_ROPE or "
          "BEFORE_ROPE",
          static_cast<int>(rotation));
  }
}

Result<NativeLayout> FromProto(const v1::NativeLayout& proto) {
  NativeLayout native;
  for (int g = 0; g < proto.groups_size(); ++g) {
    LayerGroup group{.count = proto.groups(g).count(), .planes = {}};
    for (int p = 0; p < proto.groups(g).planes_size(); ++p) {
      const v1::Plane& plane = proto.groups(g).planes(p);
      const std::string field = fmt::format("layout.native.groups[{}].planes[{}].dtype", g, p);
      CAIRN_ASSIGN_OR_RETURN(const DType dtype, DTypeFromProto(plane.dtype(), field));
      group.planes.push_back(
          {.name = plane.name(), .heads = plane.heads(), .dim = plane.dim(), .dtype = dtype});
    }
    native.Append(std::move(group));
  }
  native.kv_heads = proto.kv_heads();
  CAIRN_ASSIGN_OR_RETURN(native.key_rotation, RotationFromProto(proto.key_rotation()));
  return native;
}

void ToProto(const NativeLayout& native, v1::NativeLayout* out) {
  for (const LayerGroup& group : native.groups) {
    v1::LayerGroup* to = out->add_groups();
    to->set_count(group.count);
    for (const Plane& plane : group.planes) {
      v1::Plane* p = to->add_planes();
      p->set_name(plane.name);
      p->set_heads(plane.heads);
      p->set_dim(plane.dim);
      p->set_dtype(static_cast<v1::DType>(plane.dtype));
    }
  }
  out->set_kv_heads(native.kv_heads);
  out->set_key_rotation(static_cast<v1::KeyRotation>(native.key_rotation));
}

void ToProto(const Pool& pool, v1::Pool* out) {
  out->set_name(pool.name);
  out->set_block_tokens(pool.block_tokens);
  out->set_parts(pool.parts);
  out->set_max_part_bytes(pool.max_part_bytes);
  out->set_chained(pool.chained);
}

Result<OpaqueLayout> FromProto(const v1::OpaqueLayout& proto) {
  CAIRN_RETURN_IF_ERROR(CheckPoolCount(static_cast<size_t>(proto.pools_size())));
  OpaqueLayout opaque{.description = proto.description(),
                      .max_part_bytes = proto.max_part_bytes(),
                      .parts = proto.parts()};
  for (const v1::Pool& pool : proto.pools()) {
    opaque.pools.push_back({.name = pool.name(),
                            .block_tokens = pool.block_tokens(),
                            .parts = pool.parts(),
                            .max_part_bytes = pool.max_part_bytes(),
                            .chained = pool.chained()});
  }
  return opaque;
}

// The rectangle lies within its pool, if there are some. REQUIRES: it lies on the grid.
Status CheckInPool(const format::PartRect& rect, const Layout& layout, std::string_view field) {
  if (layout.Pools().empty()) return OkStatus();
  const format::PartRect pool = layout.WholeOf(layout.PoolOf(rect));
  if (rect.layer_end <= pool.layer_end && rect.head_end <= pool.head_end) return OkStatus();
  return InvalidArgument(
      "field '{}': got layers [{}, {}), heads [{}, {}), expected a part of one pool: '{}' has "
      "layer {} and {} heads",
      field, rect.layer_begin, rect.layer_end, rect.head_begin, rect.head_end,
      layout.Pools()[pool.layer_begin].name, pool.layer_begin, pool.head_end);
}

// [begin, end) with begin < end <= 65535.
Status CheckRun(uint32_t begin, uint32_t end, std::string_view field, std::string_view what) {
  constexpr uint32_t kMax = std::numeric_limits<uint16_t>::max();
  if (begin >= end || end > kMax) {
    return InvalidArgument("field '{}': got {}s [{}, {}), expected {}_begin < {}_end <= {}", field,
                           what, begin, end, what, what, kMax);
  }
  return OkStatus();
}

}  // namespace

static_assert(static_cast<int>(DType::kI8) == v1::DTYPE_I8);
static_assert(static_cast<int>(DType::kF16) == v1::DTYPE_F16);
static_assert(static_cast<int>(KeyRotation::kBeforeRope) == v1::KEY_ROTATION_BEFORE_ROPE);

void ToProto(const NamespaceSpec& spec, v1::NamespaceSpec* out) {
  out->Clear();
  out->set_tenant(spec.tenant);
  out->set_salt(spec.salt);
  out->set_model(spec.model);
  out->set_revision(spec.revision);
  out->set_weight_epoch(spec.weight_epoch);
  v1::Layout* layout = out->mutable_layout();
  layout->set_block_tokens(spec.layout.block_tokens);
  if (const auto* native = std::get_if<NativeLayout>(&spec.layout.form)) {
    ToProto(*native, layout->mutable_native());
  } else {
    const auto& opaque = std::get<OpaqueLayout>(spec.layout.form);
    layout->mutable_opaque()->set_description(opaque.description);
    layout->mutable_opaque()->set_max_part_bytes(opaque.max_part_bytes);
    layout->mutable_opaque()->set_parts(opaque.parts);
    for (const Pool& pool : opaque.pools) ToProto(pool, layout->mutable_opaque()->add_pools());
  }
  out->set_recipe(spec.recipe);
  out->set_numerics(spec.numerics);
  out->set_key_version(spec.key_version);
  out->set_key_scheme(spec.key_scheme);
}

NamespaceSpec WithoutLayout(const v1::NamespaceSpec& proto) {
  NamespaceSpec spec;
  spec.tenant = proto.tenant();
  spec.salt = proto.salt();
  spec.model = proto.model();
  spec.revision = proto.revision();
  spec.weight_epoch = proto.weight_epoch();
  spec.recipe = proto.recipe();
  spec.numerics = proto.numerics();
  spec.key_version = proto.key_version();
  spec.key_scheme = proto.key_scheme();
  return spec;
}

Result<NamespaceSpec> FromProto(const v1::NamespaceSpec& proto) {
  NamespaceSpec spec = WithoutLayout(proto);
  spec.layout.block_tokens = proto.layout().block_tokens();
  switch (proto.layout().form_case()) {
    case v1::Layout::kNative: {
      CAIRN_ASSIGN_OR_RETURN(spec.layout.form, FromProto(proto.layout().native()));
      break;
    }
    case v1::Layout::kOpaque: {
      CAIRN_ASSIGN_OR_RETURN(spec.layout.form, FromProto(proto.layout().opaque()));
      break;
    }
    case v1::Layout::FORM_NOT_SET:
      return InvalidArgument("field 'layout.form': got none, expected 'native' or 'opaque'");
  }
  return spec;
}

void ToProto(const format::PartRect& rect, v1::PartRect* out) {
  out->set_layer_begin(rect.layer_begin);
  out->set_layer_end(rect.layer_end);
  out->set_head_begin(rect.head_begin);
  out->set_head_end(rect.head_end);
}

Result<format::PartRect> FromProto(const v1::PartRect& proto, std::string_view field) {
  CAIRN_RETURN_IF_ERROR(CheckRun(proto.layer_begin(), proto.layer_end(), field, "layer"));
  CAIRN_RETURN_IF_ERROR(CheckRun(proto.head_begin(), proto.head_end(), field, "head"));
  return format::PartRect{.layer_begin = static_cast<uint16_t>(proto.layer_begin()),
                          .layer_end = static_cast<uint16_t>(proto.layer_end()),
                          .head_begin = static_cast<uint16_t>(proto.head_begin()),
                          .head_end = static_cast<uint16_t>(proto.head_end())};
}

Status CheckInGrid(const format::PartRect& rect, const Layout& layout, std::string_view field) {
  const format::PartRect grid = layout.WholeRect();
  if (rect.layer_end > grid.layer_end || rect.head_end > grid.head_end) {
    return InvalidArgument(
        "field '{}': got layers [{}, {}), heads [{}, {}), expected a rectangle in {} layers x {} "
        "heads",
        field, rect.layer_begin, rect.layer_end, rect.head_begin, rect.head_end, grid.layer_end,
        grid.head_end);
  }
  if (!layout.IsNative() && rect.head_end != rect.head_begin + 1) {
    return InvalidArgument("field '{}': got heads [{}, {}), expected one part of an opaque layout",
                           field, rect.head_begin, rect.head_end);
  }
  return CheckInPool(rect, layout, field);
}

// The numbers are those of a part's header: the enum is open, its names are for people.
v1::Codec ToProto(format::Codec codec) { return static_cast<v1::Codec>(static_cast<int>(codec)); }

Result<format::Codec> FromProto(v1::Codec codec, std::string_view field) {
  const int value = static_cast<int>(codec);
  if (value < 0 || value > static_cast<int>(format::kLastCodec)) {
    return InvalidArgument("field '{}': got codec {}, expected 0 to {}", field, value,
                           static_cast<int>(format::kLastCodec));
  }
  return static_cast<format::Codec>(value);
}

void ToProto(const FieldDifference& difference, uint64_t stored_blocks, v1::FieldDifference* out) {
  out->set_field(difference.field);
  out->set_stored(difference.stored);
  out->set_requested(difference.requested);
  out->set_stored_blocks(stored_blocks);
}

FieldDifference FromProto(const v1::FieldDifference& proto) {
  if (proto.field() == "salt") return {"salt", "(hidden)", "(hidden)"};
  return {proto.field(), proto.stored(), proto.requested()};
}

std::string KeysToProto(std::span<const BlockKey> keys) {
  std::string out;
  out.reserve(keys.size() * 32);
  for (const BlockKey& key : keys) out.append(key.View());
  return out;
}

Result<std::vector<BlockKey>> KeysFromProto(std::string_view bytes) {
  if (bytes.empty() || bytes.size() % 32 != 0 || bytes.size() / 32 > kMaxKeys) {
    return InvalidArgument("field 'keys': got {} bytes, expected 1 to {} keys of 32 bytes",
                           bytes.size(), kMaxKeys);
  }
  std::vector<BlockKey> keys(bytes.size() / 32);
  for (size_t i = 0; i < keys.size(); ++i) {
    std::copy_n(bytes.data() + 32 * i, 32, keys[i].bytes.data());
  }
  return keys;
}

void ToProto(const Status& status, v1::PartResult* out) {
  out->set_code(static_cast<uint32_t>(status.code()));
  out->set_message(Message(status));
}

Status FromProto(const v1::PartResult& proto) {
  if (proto.code() == 0) return OkStatus();
  const auto code =
      proto.code() <= 16 ? static_cast<StatusCode>(proto.code()) : StatusCode::kUnknown;
  return Status(code, proto.message());
}

Result<NextUse> ToNextUse(int number, std::string_view field) {
  if (number >= 0 && number < kNextUseCount) return static_cast<NextUse>(number);
  return InvalidArgument("field '{}': got {}, expected 0 to {}", field, number, kNextUseCount - 1);
}

}  // namespace cairn::wire
