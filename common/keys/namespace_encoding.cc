// The binary form of a namespace, and its fingerprint.

#include <algorithm>
#include <cstdint>

#include "common/keys/canonical_form.h"

namespace cairn {
namespace {

// Opens every encoded namespace. Another layout of the bytes gets another version here, and so
// another fingerprint.
constexpr std::string_view kNamespaceMagic = "cairn.namespace.v1";
constexpr uint32_t kFormNative = 1;
constexpr uint32_t kFormOpaque = 2;
constexpr uint32_t kFormPools = 3;  // Opaque, with pools.

class Writer {
 public:
  void U32(uint32_t v) {
    for (int i = 0; i < 4; ++i) out_.push_back(static_cast<char>(v >> (8 * i)));
  }
  void U64(uint64_t v) {
    for (int i = 0; i < 8; ++i) out_.push_back(static_cast<char>(v >> (8 * i)));
  }
  void Raw(std::string_view bytes) { out_.append(bytes); }
  void Field(std::string_view bytes) {
    U64(bytes.size());
    Raw(bytes);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads until the first thing that does not fit; from then on everything reads as zero and ok() is
// false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  uint32_t U32() { return static_cast<uint32_t>(Little(4)); }
  uint64_t U64() { return Little(8); }
  std::string_view Raw(uint64_t n) {
    if (n > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view out = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return out;
  }
  std::string Field() { return std::string(Raw(U64())); }
  // The bytes mean nothing that this version knows.
  void Refuse() { ok_ = false; }
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && rest_.empty(); }

 private:
  uint64_t Little(size_t n) {
    const std::string_view bytes = Raw(n);
    uint64_t v = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      v |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return v;
  }
  std::string_view rest_;
  bool ok_ = true;
};

void EncodePools(const std::vector<Pool>& pools, Writer& w) {
  w.U32(static_cast<uint32_t>(pools.size()));
  for (const Pool& pool : pools) {
    w.Field(pool.name);
    w.U32(pool.block_tokens);
    w.U32(pool.parts);
    w.U64(pool.max_part_bytes);
    w.U32(pool.chained ? 1 : 0);
  }
}

void EncodeLayout(const Layout& layout, Writer& w) {
  w.U32(layout.block_tokens);
  if (const auto* native = std::get_if<NativeLayout>(&layout.form)) {
    w.U32(kFormNative);
    w.U32(native->kv_heads);
    w.U32(static_cast<uint32_t>(native->key_rotation));
    const std::vector<LayerGroup> groups = CanonicalGroups(native->groups);
    w.U32(static_cast<uint32_t>(groups.size()));
    for (const LayerGroup& group : groups) {
      w.U32(group.count);
      w.U32(static_cast<uint32_t>(group.planes.size()));
      for (const Plane& plane : group.planes) {
        w.Field(plane.name);
        w.U32(plane.heads);
        w.U32(plane.dim);
        w.U32(static_cast<uint32_t>(plane.dtype));
      }
    }
  } else {
    const auto& opaque = std::get<OpaqueLayout>(layout.form);
    w.U32(opaque.pools.empty() ? kFormOpaque : kFormPools);
    w.Field(opaque.description);
    w.U64(opaque.max_part_bytes);
    w.U32(opaque.parts);
    if (!opaque.pools.empty()) EncodePools(opaque.pools, w);
  }
}

std::vector<Pool> DecodePools(Reader& r) {
  std::vector<Pool> pools;
  const uint32_t count = r.U32();
  // Form 2 is the one without pools, and an index has no room for the number of further ones.
  if (count == 0 || count > kMaxPools) r.Refuse();
  for (uint32_t p = 0; p < count && r.ok(); ++p) {
    Pool pool;
    pool.name = r.Field();
    pool.block_tokens = r.U32();
    pool.parts = r.U32();
    pool.max_part_bytes = r.U64();
    const uint32_t chained = r.U32();
    if (chained > 1) r.Refuse();
    pool.chained = chained == 1;
    pools.push_back(std::move(pool));
  }
  return pools;
}

NativeLayout DecodeNative(Reader& r) {
  NativeLayout native;
  native.kv_heads = r.U32();
  native.key_rotation = static_cast<KeyRotation>(std::min<uint32_t>(r.U32(), 255));
  const uint32_t groups = r.U32();
  // r.ok() also bounds the loops: counts come from the bytes.
  for (uint32_t g = 0; g < groups && r.ok(); ++g) {
    LayerGroup group;
    group.count = r.U32();
    const uint32_t planes = r.U32();
    for (uint32_t p = 0; p < planes && r.ok(); ++p) {
      Plane plane;
      plane.name = r.Field();
      plane.heads = r.U32();
      plane.dim = r.U32();
      plane.dtype = static_cast<DType>(std::min<uint32_t>(r.U32(), 255));
      group.planes.push_back(std::move(plane));
    }
    native.Append(std::move(group));
  }
  return native;
}

}  // namespace

Digest Fingerprint(const NamespaceSpec& spec) { return Sha256::Of(Encode(spec)); }

std::string Encode(const NamespaceSpec& spec) { return Encode(spec, CanonicalRecipeOf(spec)); }

std::string Encode(const NamespaceSpec& spec, std::string_view recipe) {
  Writer w;
  w.Raw(kNamespaceMagic);
  w.Field(spec.tenant);
  w.Field(spec.salt);
  w.Field(spec.model);
  w.Field(spec.revision);
  w.U64(spec.weight_epoch);
  EncodeLayout(spec.layout, w);
  w.Field(recipe);
  w.Field(spec.numerics);
  w.U32(spec.key_version);
  w.Field(spec.key_scheme);
  return w.Take();
}

Result<NamespaceSpec> DecodeNamespaceSpec(std::string_view bytes) {
  Reader r(bytes);
  if (r.Raw(kNamespaceMagic.size()) != kNamespaceMagic) {
    return Errorf(StatusCode::kDataLoss, "stored namespace: does not begin with '{}'",
                  kNamespaceMagic);
  }
  NamespaceSpec spec;
  spec.tenant = r.Field();
  spec.salt = r.Field();
  spec.model = r.Field();
  spec.revision = r.Field();
  spec.weight_epoch = r.U64();
  spec.layout.block_tokens = r.U32();
  const uint32_t form = r.U32();
  if (form == kFormNative) {
    spec.layout.form = DecodeNative(r);
  } else if (form == kFormOpaque || form == kFormPools) {
    OpaqueLayout opaque;
    opaque.description = r.Field();
    opaque.max_part_bytes = r.U64();
    opaque.parts = r.U32();
    if (form == kFormPools) opaque.pools = DecodePools(r);
    spec.layout.form = std::move(opaque);
  } else if (r.ok()) {
    return Errorf(StatusCode::kDataLoss, "stored namespace: layout form {}, expected 1 to 3", form);
  }
  spec.recipe = r.Field();
  spec.numerics = r.Field();
  spec.key_version = r.U32();
  spec.key_scheme = r.Field();
  if (!r.AtEnd()) {
    return Errorf(StatusCode::kDataLoss,
                  "stored namespace: {} bytes do not end where the last field does", bytes.size());
  }
  return spec;
}

}  // namespace cairn
