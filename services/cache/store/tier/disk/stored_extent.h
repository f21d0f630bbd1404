#pragma once
// The entry of an extent in the disk tier's database (docs/inside/formats/disk.md). Pure; knows no
// RocksDB.

#include <cstdint>
#include <string>
#include <string_view>

#include "services/cache/store/tier/disk/value_file_map.h"

namespace cairn::cache::disk {

struct StoredExtent {
  uint64_t id = 0;
  Place place;
  uint32_t length = 0;
  uint64_t order = 0;  // The order of its segment.
  uint64_t hash = 0;   // XXH3 of the bytes.
  std::string_view record;
};

// The value under the extent's id.
std::string EncodeExtent(const StoredExtent& extent);
// False: it is not whole, or another extent's. The record is a part of `value`.
bool DecodeExtent(uint64_t id, std::string_view value, StoredExtent* extent);

}  // namespace cairn::cache::disk
