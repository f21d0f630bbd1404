#include "services/worker/engine/engine_memory.h"

#include <vector>

#include "common/config/config.h"
#include "common/log/log.h"
#include "common/memory/machine_memory.h"
#include "common/memory/memory_plan.h"

namespace cairn::worker {
namespace {

constexpr uint64_t kMiB = 1 << 20;
// The process itself: code, threads, gRPC, a vocabulary.
constexpr uint64_t kProcess = 160 * kMiB;

// UINT64_MAX stays: unknown.
void Add(uint64_t bytes, uint64_t* available) {
  if (__builtin_add_overflow(*available, bytes, available)) *available = UINT64_MAX;
}

}  // namespace

Result<MemoryAccount::Bounds> FitMemory(WorkerEngine::Options* options, const MemoryNeeds& needs) {
  const WorkerEngine::Options defaults;
  std::vector<PlannedMemory> items;
  for (const MemoryItemText& text : MemoryItems<MemoryItem>::kTexts) {
    items.push_back({.setting = text.setting.empty() ? text.name : text.setting});
  }
  const auto at = [&items](MemoryItem item) -> PlannedMemory& {
    return items[static_cast<size_t>(item)];
  };
  at(MemoryItem::kWeights).bytes = needs.taken.weights;
  at(MemoryItem::kPool).bytes = needs.pool;
  if (options->kv_pool_bytes == 0) at(MemoryItem::kPool).least = needs.least_pool;
  at(MemoryItem::kParking).bytes = options->parking_bytes;
  if (options->parking_bytes == defaults.parking_bytes) at(MemoryItem::kParking).least = 0;
  const bool reads = !options->read_policy.empty();
  const bool budgeted = options->kv_budget != 0;
  const uint64_t near = budgeted ? options->kv_budget : options->max_running * needs.near;
  at(MemoryItem::kNear).bytes = reads ? near : 0;
  if (!budgeted) at(MemoryItem::kNear).least = options->max_running * needs.least_near;
  at(MemoryItem::kCompute).bytes = needs.taken.compute;
  at(MemoryItem::kRequests).bytes = 2 * options->request_bytes;
  at(MemoryItem::kRequests).least = 2 * options->least_request_bytes;
  // Two threads push, a batch each, and as much may arrive.
  at(MemoryItem::kProcess).bytes = kProcess + 4 * options->push.batch_blocks * needs.page;
  MachineMemory machine = ReadMachineMemory();
  for (uint64_t* const available :
       {&machine.machine_available, &machine.nodes_available, &machine.group_available}) {
    Add(needs.taken.weights, available);
  }
  CAIRN_RETURN_IF_ERROR(cairn::FitMemory(items, options->memory_limit, machine));
  options->parking_bytes = at(MemoryItem::kParking).bytes;
  options->request_bytes = at(MemoryItem::kRequests).bytes / 2;
  options->kv_pool_bytes = at(MemoryItem::kPool).bytes;
  if (at(MemoryItem::kNear).bytes < near && reads) {
    options->kv_budget = at(MemoryItem::kNear).bytes;
    log::Info("kv_budget_by_memory", {{"kv_budget", config::FormatBytes(options->kv_budget)},
                                      {"longest_contexts_need", config::FormatBytesUp(near)}});
  }
  MemoryAccount::Bounds bounds{};
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = items[i].bytes;
  return bounds;
}

}  // namespace cairn::worker
