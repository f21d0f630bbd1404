#include "common/memory/memory_plan.h"

#include <algorithm>
#include <string>
#include <vector>

namespace cairn {
namespace {

constexpr uint64_t kMiB = 1 << 20;

uint64_t UpToMiB(uint64_t bytes) { return bytes / kMiB + (bytes % kMiB != 0); }

uint64_t LeastOf(const PlannedMemory& item) { return std::min(item.least, item.bytes); }

// UINT64_MAX if it is larger than that.
void AddUp(uint64_t bytes, uint64_t* sum) {
  if (__builtin_add_overflow(*sum, bytes, sum)) *sum = UINT64_MAX;
}

// The least that the items may be.
std::string DescribeLeast(std::span<const PlannedMemory> items) {
  std::vector<PlannedMemory> least(items.begin(), items.end());
  for (PlannedMemory& item : least) item.bytes = LeastOf(item);
  return DescribeMemory(least);
}

}  // namespace

Status FitMemory(std::span<PlannedMemory> items, uint64_t limit, const MachineMemory& machine) {
  uint64_t least = 0, all = 0;
  for (const PlannedMemory& item : items) {
    AddUp(LeastOf(item), &least);
    AddUp(item.bytes, &all);
  }
  if (limit != 0 && least > limit) {
    return Errorf(StatusCode::kResourceExhausted,
                  "memory.limit: got {} MiB, expected at least the {}", limit / kMiB,
                  DescribeLeast(items));
  }
  CAIRN_RETURN_IF_ERROR(CheckFits(machine, least, "memory: " + DescribeLeast(items), "lower them"));
  const uint64_t room = std::min(limit == 0 ? UINT64_MAX : limit, machine.Available());
  if (all <= room) return OkStatus();
  const double part = static_cast<double>(room - least) / static_cast<double>(all - least);
  for (PlannedMemory& item : items) {
    const uint64_t own = LeastOf(item);
    item.bytes = own + static_cast<uint64_t>(part * static_cast<double>(item.bytes - own));
  }
  return OkStatus();
}

std::string DescribeMemory(std::span<const PlannedMemory> items) {
  std::string text;
  uint64_t sum = 0;
  for (const PlannedMemory& item : items) {
    if (item.bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", item.setting, UpToMiB(item.bytes));
    AddUp(item.bytes, &sum);
  }
  return text + fmt::format(" = {} MiB", UpToMiB(sum));
}

}  // namespace cairn
