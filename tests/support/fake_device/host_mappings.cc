#include "tests/support/fake_device/host_mappings.h"

#include <cinttypes>
#include <cstdio>

namespace cairn::device::fake {
namespace {

struct Mapping {
  bool writable = false;
  std::string identity;
};

Mapping Find(uint64_t address) {
  Mapping mapping;
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return mapping;
  char line[1024];
  while (std::fgets(line, sizeof(line), maps) != nullptr) {
    uint64_t begin = 0, end = 0, offset = 0, inode = 0;
    char rights[8] = {}, device[16] = {};
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %15s %" SCNu64, &begin, &end,
                    rights, &offset, device, &inode) != 6) {
      continue;
    }
    if (address < begin || address >= end) continue;
    mapping.writable = rights[1] == 'w';
    char identity[96];
    std::snprintf(identity, sizeof(identity), "%s:%" PRIu64 " %" PRIu64, device, inode,
                  inode == 0 ? 0 : offset + (address - begin));
    mapping.identity = identity;
    break;
  }
  std::fclose(maps);
  return mapping;
}

}  // namespace

std::string MappingAt(uint64_t address) { return Find(address).identity; }

bool IsWritable(uint64_t address) { return Find(address).writable; }

}  // namespace cairn::device::fake
