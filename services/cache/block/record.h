#pragma once
// What the disk tier keeps beside each part, so that the index can be built again from the parts
// alone, in any order. docs/formats/record.md draws the bytes. Version 1; another version is not
// read.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn::cache {

inline constexpr uint16_t kRecordVersion = 1;

struct BlockRecord {
  Digest fingerprint;
  uint64_t generation = 0;  // Of the namespace: an older one than the namespace's was dropped.
  BlockKey key;
  std::optional<BlockKey> parent;
  format::PartRect rect;
  format::PartRect grid;  // The whole: begins are 0.
  uint32_t bytes = 0;
  float recompute_seconds = 0;
};

std::string EncodeRecord(const BlockRecord& record);
// DATA_LOSS, saying what is wrong.
Result<BlockRecord> DecodeRecord(std::string_view bytes);

// The named record of a namespace: its spec, its generation, and whether it was dropped.
struct NamespaceRecord {
  NamespaceSpec spec;
  uint64_t generation = 0;
  bool dropped = false;
};
inline constexpr std::string_view kNamespaceMetaPrefix = "namespace/";
std::string NamespaceMetaName(const Digest& fingerprint);
std::string EncodeNamespaceRecord(const NamespaceRecord& record);
Result<NamespaceRecord> DecodeNamespaceRecord(std::string_view bytes);

}  // namespace cairn::cache
