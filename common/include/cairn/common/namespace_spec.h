#pragma once
// Namespaces in plain C++: everything that must be equal for KV to be interchangeable, the
// fingerprint of a namespace, and block keys.
//
// The cache node and its clients share this code, so that both compute the same fingerprint.
// docs/inside/formats/keys.md has the bytes that are hashed, and tests/unit/common/keys has golden
// vectors.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn {

enum class DType : uint8_t { kF16 = 1, kBF16 = 2, kF32 = 3, kF8E4M3 = 4, kI8 = 5 };
uint32_t DTypeBytes(DType dtype);
std::string_view Name(DType dtype);

struct Plane {
  std::string name;
  uint32_t heads = 0;
  uint32_t dim = 0;
  DType dtype = DType::kF16;
  bool operator==(const Plane&) const = default;
};

// A run of consecutive layers with the same planes.
struct LayerGroup {
  uint32_t count = 0;
  std::vector<Plane> planes;
  bool operator==(const LayerGroup&) const = default;
};

enum class KeyRotation : uint8_t { kAfterRope = 1, kBeforeRope = 2 };

struct NativeLayout {
  std::vector<LayerGroup> groups;
  uint32_t kv_heads = 0;
  KeyRotation key_rotation = KeyRotation::kAfterRope;

  // Appends layers. Those that are like the last group make it longer, so that a decoder keeps no
  // more groups than the layout has.
  void Append(LayerGroup group);
  bool operator==(const NativeLayout&) const = default;
};

// One of several KV pools of an opaque layout: layers whose KV is kept, lost and given back
// together, in blocks of their own length. Pool p is row p of the part grid, and a block belongs to
// one pool.
struct Pool {
  std::string name;           // For people and metrics; names of a layout differ.
  uint32_t block_tokens = 0;  // A multiple of Layout::block_tokens.
  uint32_t parts = 0;         // They make a block of the pool complete.
  uint64_t max_part_bytes = 0;
  // Blocks follow each other and leave from the end, as those of full attention. False: each stands
  // alone, has no parent, and leaves by its last use.
  bool chained = false;
  bool operator==(const Pool&) const = default;
};
// The index keeps the number of a block's pool in five bits.
inline constexpr uint32_t kMaxPools = 32;

struct OpaqueLayout {
  std::string description;
  uint64_t max_part_bytes = 0;   // 0 with pools, which have their own.
  uint32_t parts = 0;            // The same.
  std::vector<Pool> pools = {};  // Empty: all blocks are alike.
  bool operator==(const OpaqueLayout&) const = default;
};

// Heads [begin, end) of a plane.
struct HeadRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool operator==(const HeadRange&) const = default;
};

struct Layout {
  // With pools: the unit, in tokens, in which the lengths of their blocks are counted. There is a
  // key for each.
  uint32_t block_tokens = 64;
  std::variant<NativeLayout, OpaqueLayout> form;
  bool operator==(const Layout&) const = default;

  bool IsNative() const { return std::holds_alternative<NativeLayout>(form); }
  // The size of the part grid. Opaque: 1 layer, `parts` heads. With pools: a layer for each, and as
  // many heads as the pool with most parts has.
  uint32_t Layers() const;
  uint32_t KvHeads() const;
  format::PartRect WholeRect() const;

  // Empty for a layout without pools, as native ones are. Valid as long as the layout.
  std::span<const Pool> Pools() const;
  // How many kinds of blocks there are: at least 1. The functions below take the number of a pool,
  // which is 0 in a layout without pools.
  uint32_t PoolCount() const {
    return std::max<uint32_t>(1, static_cast<uint32_t>(Pools().size()));
  }
  // The parts that make a block complete.
  format::PartRect WholeOf(uint32_t pool) const;
  // The tokens that a block stands for.
  uint32_t BlockTokensOf(uint32_t pool) const;
  // The most bytes of a part, without its header. REQUIRES: opaque.
  uint64_t MaxPartBytesOf(uint32_t pool) const;
  // The pool that a part on the grid belongs to. It may go beyond the pool's rectangle.
  uint32_t PoolOf(const format::PartRect& part) const {
    return Pools().empty() ? 0 : part.layer_begin;
  }
  // The size in bytes of a layer's raw slice in a part with these heads. 0: a layer without planes.
  // REQUIRES: native.
  uint64_t SliceBytes(uint32_t layer, uint32_t head_begin, uint32_t head_end) const;
  // The planes of a layer in storage order, or none after the last layer. Valid as long as the
  // layout. REQUIRES: native.
  std::span<const Plane> PlanesOf(uint32_t layer) const;
  // The heads of `plane` that a part with heads [head_begin, head_end) holds. A plane with fewer
  // heads than the grid belongs completely to the part that holds head 0. REQUIRES: native.
  HeadRange PlaneHeads(const Plane& plane, uint32_t head_begin, uint32_t head_end) const;
};

// Fields as in proto/cairn/v1/common.proto, which documents their ranges.
struct NamespaceSpec {
  std::string tenant = "default";
  std::string salt;
  std::string model;
  std::string revision;
  uint64_t weight_epoch = 0;
  Layout layout;
  std::string recipe = "raw";
  std::string numerics;
  uint32_t key_version = 1;
  std::string key_scheme = "cairn";
  bool operator==(const NamespaceSpec&) const = default;
};

// INVALID_ARGUMENT, which names the field, its value and what was expected. Neighbouring layer
// groups with equal planes are legal and mean the same as one group.
Status Validate(const NamespaceSpec& spec);

// The limit alone, for those who read a message: it is checked before the pools are copied.
Status CheckPoolCount(size_t pools);

// SHA-256 of Encode(spec). REQUIRES: Validate(spec).ok().
Digest Fingerprint(const NamespaceSpec& spec);

// Every field as (name, value for people), in the order of the fingerprint. Two specs are equal if
// these lists are equal.
std::vector<std::pair<std::string, std::string>> Describe(const NamespaceSpec& spec);

// The names of the fields in which two specs differ, with both values. If one layout is native and
// the other is opaque, only block_tokens and "layout.form" of the layout are compared. Values are
// for answers and logs: long ones are cut, and of salts it is said only that they differ.
struct FieldDifference {
  std::string field;
  std::string stored;
  std::string requested;
};
std::vector<FieldDifference> Differences(const NamespaceSpec& stored,
                                         const NamespaceSpec& requested);

// A stable binary form, for storage. Decode: DATA_LOSS on malformed bytes. It does not validate the
// fields, because a newer version may have stored values that this version does not know.
std::string Encode(const NamespaceSpec& spec);
Result<NamespaceSpec> DecodeNamespaceSpec(std::string_view bytes);

using BlockKey = Digest;

// The key of a block of a pool, version 1: the key of the block's last unit XOR a mask of the pool,
//
//   mask(0) = 0, mask(p) = SHA256("cairn.pool.v1" | u32 p)
//
// So PoolKey of a pool key and the same pool is the unit's key again. REQUIRES: pool < kMaxPools.
const Digest& PoolMask(uint32_t pool);
BlockKey PoolKey(const BlockKey& unit_key, uint32_t pool);
// The keys of all blocks of a pool that a prompt with these unit keys fills. `units`: those of a
// block, at least 1.
std::vector<BlockKey> PoolKeys(std::span<const BlockKey> unit_keys, uint32_t units, uint32_t pool);

// Cairn's own derivation of block keys, version 1: a chain of SHA-256.
//
//   key = SHA256("cairn.block.v1" | fingerprint | parent key (zero for a root) | u32 token count |
//   tokens as u32 | field(extra))
//
// Integers are little-endian, and field() is a u64 length and the bytes. Not thread-safe: the
// object reuses one hash context.
class BlockKeyChain {
 public:
  explicit BlockKeyChain(const Digest& fingerprint) : fingerprint_(fingerprint) {}
  // The key of the block with these tokens after `parent` (nullopt: a root). `extra`: anything else
  // that the KV depends on, for example the digest of an adapter or of an image.
  BlockKey Next(const std::optional<BlockKey>& parent, std::span<const int32_t> tokens,
                std::string_view extra = {});
  // The keys of all full blocks of a prompt.
  std::vector<BlockKey> Keys(std::span<const int32_t> tokens, uint32_t block_tokens);

 private:
  Digest fingerprint_;
  Sha256 sha_;
};

}  // namespace cairn
