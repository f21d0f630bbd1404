#pragma once
// Flips bits where they hurt: in the arena of a running node, and in files.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::fault {

// The arena of a running cairn-cache, through /proc/PID/mem. Not thread-safe.
class ArenaMemory {
 public:
  // PERMISSION_DENIED when this process may not write to that one's memory; NOT_FOUND when it maps
  // no arena.
  static Result<ArenaMemory> Open(pid_t pid);
  ~ArenaMemory();
  ArenaMemory(ArenaMemory&& other) noexcept;
  ArenaMemory(const ArenaMemory&) = delete;

  uint64_t bytes() const { return bytes_; }
  // Where in the arena `needle` begins, on a page boundary; nullopt when it does not.
  Result<std::optional<uint64_t>> FindOnPage(std::span<const std::byte> needle) const;
  // Bit 0 to 7 of the byte at `offset`.
  Status FlipBit(uint64_t offset, unsigned bit) const;

 private:
  struct Range {
    uint64_t address = 0, bytes = 0;
  };
  ArenaMemory() = default;
  int fd_ = -1;
  std::vector<Range> ranges_;  // In the order of the arena.
  uint64_t bytes_ = 0;
};

// Flips `count` random bits of a file that is not empty.
Status FlipBitsInFile(const std::string& path, uint32_t count, std::mt19937_64& random);

// Regular files below a directory that are not empty, sorted; only those whose names end with
// `suffix`.
std::vector<std::string> FilesUnder(const std::string& directory, const std::string& suffix = {});

// Replaces `to` with a copy of `from`.
void CopyDirectory(const std::string& from, const std::string& to);

}  // namespace cairn::fault
