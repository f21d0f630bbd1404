#include "common/memory/memory_plan.h"

#include <algorithm>
#include <string>

namespace cairn {
namespace {

constexpr uint64_t kMiB = 1 << 20;

uint64_t UpToMiB(uint64_t bytes) { return bytes / kMiB + (bytes % kMiB != 0); }

uint64_t LeastOf(const PlannedMemory& item) { return std::min(item.least, item.bytes); }

// "index 256 + token_cache 64 + process 100 = 420 MiB", of the least that they may be.
std::string Describe(std::span<const PlannedMemory> items, uint64_t sum) {
  std::string text;
  for (const PlannedMemory& item : items) {
    if (item.bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", item.setting, UpToMiB(LeastOf(item)));
  }
  return text + fmt::format(" = {} MiB", UpToMiB(sum));
}

}  // namespace

Status FitMemory(std::span<PlannedMemory> items, uint64_t limit, const MachineMemory& machine) {
  uint64_t least = 0, all = 0;
  for (const PlannedMemory& item : items) {
    if (__builtin_add_overflow(least, LeastOf(item), &least)) least = UINT64_MAX;
    if (__builtin_add_overflow(all, item.bytes, &all)) all = UINT64_MAX;
  }
  if (limit != 0 && least > limit) {
    return Errorf(StatusCode::kResourceExhausted,
                  "memory.limit: got {} MiB, expected at least the {}", limit / kMiB,
                  Describe(items, least));
  }
  CAIRN_RETURN_IF_ERROR(
      CheckFits(machine, least, "memory: " + Describe(items, least), "lower them"));
  const uint64_t room = std::min(limit == 0 ? UINT64_MAX : limit, machine.Available());
  if (all <= room) return OkStatus();
  const double part = static_cast<double>(room - least) / static_cast<double>(all - least);
  for (PlannedMemory& item : items) {
    const uint64_t own = LeastOf(item);
    item.bytes = own + static_cast<uint64_t>(part * static_cast<double>(item.bytes - own));
  }
  return OkStatus();
}

}  // namespace cairn
