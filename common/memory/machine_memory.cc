#include "common/memory/machine_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

namespace cairn {
namespace {

// Version 1 of control groups says "no limit" with a huge number of pages.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The first number of a file; nothing for "max" or no such file.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream in(path);
  uint64_t value;
  if (in >> value && value < kNoLimit) return value;
  return std::nullopt;
}

// "MemFree: 12 kB", "Node 0 MemFree: 12 kB" and "inactive_file 12" are lines of such files. The
// names have no colon here, and sizes are bytes.
std::map<std::string, uint64_t> ReadTable(const std::string& path) {
  std::map<std::string, uint64_t> table;
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with("Node ")) line.erase(0, line.find(' ', 5) + 1);
    std::istringstream words(line);
    std::string name, unit;
    uint64_t value;
    if (!(words >> name >> value)) continue;
    if (name.back() == ':') name.pop_back();
    if (words >> unit && unit == "kB") value *= 1024;
    table[name] = value;
  }
  return table;
}

// "0-2,5"
std::set<int> ParseNodeList(std::string_view text) {
  std::set<int> nodes;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view range = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    int first = 0;
    const char* const end = range.data() + range.size();
    const auto [next, error] = std::from_chars(range.data(), end, first);
    if (error != std::errc()) continue;
    int last = first;
    if (next != end && *next == '-') std::from_chars(next + 1, end, last);
    // A machine has at most some thousand; a wrong line must not fill the memory.
    for (int node = first; node <= last && nodes.size() < 4096; ++node) nodes.insert(node);
  }
  return nodes;
}

std::string AllowedNodes(const std::string& root) {
  std::ifstream in(root + "/proc/self/status");
  constexpr std::string_view kName = "Mems_allowed_list:";
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(kName)) continue;
    const size_t begin = line.find_first_not_of(" \t", kName.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

void ReadNodes(const std::string& root, MachineMemory* memory) {
  const std::string folder = root + "/sys/devices/system/node";
  const std::set<int> all = ParseNodeList(FirstLine(folder + "/has_memory"));
  const std::set<int> allowed = ParseNodeList(AllowedNodes(root));
  if (allowed.empty() || std::includes(allowed.begin(), allowed.end(), all.begin(), all.end())) {
    return;
  }
  uint64_t total = 0, available = 0;
  for (const int node : allowed) {
    if (!all.contains(node)) continue;
    auto table = ReadTable(folder + "/node" + std::to_string(node) + "/meminfo");
    total += table["MemTotal"];
    // There is no MemAvailable of a node. It is about this, as the kernel adds it up.
    available +=
        table["MemFree"] + table["Active(file)"] + table["Inactive(file)"] + table["SReclaimable"];
  }
  if (total == 0) return;
  memory->nodes_total = total;
  memory->nodes_available = available;
}

// This process's path in the hierarchy that has `controller` ("" is version 2).
std::optional<std::string> GroupPath(const std::string& root, const std::string& controller) {
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {  // "0::/path" or "7:hugetlb,memory:/path".
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string list = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool found = controller.empty()
                           ? list == ",,"
                           : list.find(fmt::format(",{},", controller)) != std::string::npos;
    if (found) return line.substr(second + 1);
  }
  return std::nullopt;
}

void Apply(MachineMemory& memory, std::optional<uint64_t> max, std::optional<uint64_t> usage,
           uint64_t cache) {
  if (!max) return;
  memory.group_limit = std::min(memory.group_limit, *max);
  const uint64_t used = usage.value_or(0) - std::min(usage.value_or(0), cache);
  memory.group_available = std::min(memory.group_available, *max - std::min(*max, used));
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

void ReadGroups(const std::string& root, MachineMemory* memory) {
  if (const auto path = GroupPath(root, "")) {
    // Next to version 1, the hierarchy of version 2 is mounted below.
    for (const char* const mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      ForEachGroup(root + mount, *path, [&](const std::string& dir) {
        Apply(*memory, ReadNumber(dir + "/memory.max"), ReadNumber(dir + "/memory.current"),
              ReadTable(dir + "/memory.stat")["inactive_file"]);
      });
    }
  }
  if (const auto path = GroupPath(root, "memory")) {
    ForEachGroup(root + "/sys/fs/cgroup/memory", *path, [&](const std::string& dir) {
      Apply(*memory, ReadNumber(dir + "/memory.limit_in_bytes"),
            ReadNumber(dir + "/memory.usage_in_bytes"),
            ReadTable(dir + "/memory.stat")["total_inactive_file"]);
    });
  }
}

}  // namespace

uint64_t MachineMemory::Total() const {
  return std::min({machine_total, nodes_total, group_limit});
}

uint64_t MachineMemory::Available() const {
  return std::min({machine_available, nodes_available, group_available});
}

std::string_view MachineMemory::Limiter() const {
  if (Available() == machine_available) return "the machine";
  return Available() == group_available ? "the control group" : "the NUMA nodes of the cpuset";
}

MachineMemory ReadMachineMemory(const std::string& root) {
  MachineMemory memory;
  const auto machine = ReadTable(root + "/proc/meminfo");
  if (const auto it = machine.find("MemTotal"); it != machine.end()) {
    memory.machine_total = it->second;
  }
  if (const auto it = machine.find("MemAvailable"); it != machine.end()) {
    memory.machine_available = it->second;
  }
  ReadNodes(root, &memory);
  ReadGroups(root, &memory);
  return memory;
}

Status CheckFits(const MachineMemory& memory, uint64_t bytes, const std::string& what,
                 const std::string& advice) {
  if (bytes <= memory.Available()) return OkStatus();
  return Errorf(StatusCode::kResourceExhausted,
                "{}, expected at most the {} MiB of memory that {} has left; {}", what,
                memory.Available() >> 20, memory.Limiter(), advice);
}

}  // namespace cairn
