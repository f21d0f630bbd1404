#pragma once
// The record that the disk tier stores with each part. With the records, recovery can build the
// index again from the parts alone, in any order. docs/inside/formats/record.md draws the bytes. No
// other versions than those that it draws are read.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn::cache {

inline constexpr uint16_t kRecordVersion = 2;

struct BlockRecord {
  Digest fingerprint;
  // The generation of the namespace. A record with an older one belongs to a dropped block.
  uint64_t generation = 0;
  BlockKey key;
  std::optional<BlockKey> parent;
  format::PartRect rect;
  format::PartRect grid;  // The size of the grid: its begins are 0.
  uint32_t bytes = 0;
  float recompute_seconds = 0;
  // When the block was used last before the part was written, in seconds since 1970. nullopt: a
  // record of version 1, which does not say it.
  std::optional<int64_t> used_at = std::nullopt;
};

std::string EncodeRecord(const BlockRecord& record);
// DATA_LOSS, which says what is wrong.
Result<BlockRecord> DecodeRecord(std::string_view bytes);

// The named record of a namespace: its spec, its generation, and whether it was dropped.
struct NamespaceRecord {
  NamespaceSpec spec;
  uint64_t generation = 0;
  bool dropped = false;
  // How long blocks live after their last use. 0: forever.
  Duration block_life{0};
};
inline constexpr std::string_view kNamespaceMetaPrefix = "namespace/";
std::string NamespaceMetaName(const Digest& fingerprint);
std::string EncodeNamespaceRecord(const NamespaceRecord& record);
Result<NamespaceRecord> DecodeNamespaceRecord(std::string_view bytes);

}  // namespace cairn::cache
