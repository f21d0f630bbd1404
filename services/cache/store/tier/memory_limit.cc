#include "services/cache/store/tier/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace cairn::cache {
namespace {

// The first number of a file; nothing for "max" or no such file.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream in(path);
  uint64_t value;
  if (in >> value) return value;
  return std::nullopt;
}

// The number after `name` in a file of "name number" lines.
uint64_t ReadNamed(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string word;
    uint64_t value;
    if (words >> word >> value && word == name) return value;
  }
  return 0;
}

// This process's path in the hierarchy that `controller` names ("" is v2).
std::optional<std::string> GroupPath(const std::string& root, const std::string& controller) {
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {  // "0::/path" or "7:memory:/path".
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return std::nullopt;
}

void Apply(MemoryLimit& limit, std::optional<uint64_t> max, std::optional<uint64_t> usage,
           uint64_t cache) {
  if (!max) return;
  limit.group_limit = std::min(limit.group_limit, *max);
  const uint64_t used = usage.value_or(0) - std::min(usage.value_or(0), cache);
  limit.group_available = std::min(limit.group_available, *max - std::min(*max, used));
}

// Limits hold for whole subtrees: every group from this one up to the root counts. In a container
// the path may name groups that are not visible; those are skipped.
template <typename Visit>
void ForEachGroup(const std::string& base, std::string path, Visit visit) {
  for (;;) {
    visit(base + path);
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return;
    path.resize(slash);
  }
}

}  // namespace

MemoryLimit ReadMemoryLimit(const std::string& root) {
  MemoryLimit limit;
  const uint64_t available_kib = ReadNamed(root + "/proc/meminfo", "MemAvailable:");
  if (available_kib != 0) limit.machine_available = available_kib * 1024;

  if (const auto path = GroupPath(root, "")) {
    ForEachGroup(root + "/sys/fs/cgroup", *path, [&](const std::string& dir) {
      Apply(limit, ReadNumber(dir + "/memory.max"), ReadNumber(dir + "/memory.current"),
            ReadNamed(dir + "/memory.stat", "inactive_file"));
    });
  }
  if (const auto path = GroupPath(root, "memory")) {
    ForEachGroup(root + "/sys/fs/cgroup/memory", *path, [&](const std::string& dir) {
      Apply(limit, ReadNumber(dir + "/memory.limit_in_bytes"),
            ReadNumber(dir + "/memory.usage_in_bytes"),
            ReadNamed(dir + "/memory.stat", "total_inactive_file"));
    });
  }
  return limit;
}

}  // namespace cairn::cache
