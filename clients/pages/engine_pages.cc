#include "clients/pages/engine_pages.h"

#include <numeric>

namespace cairn::pages {
namespace {

using device::CopyTask;

void Append(std::vector<CopyTask>* tasks, const CopyTask& task) {
  if (!tasks->empty()) {
    CopyTask& last = tasks->back();
    if (last.to + last.bytes == task.to && last.from + last.bytes == task.from) {
      last.bytes += task.bytes;
      return;
    }
  }
  tasks->push_back(task);
}

template <typename MakeTask>
std::vector<CopyTask> Tasks(const EnginePages& pages, std::span<const BlockCopy> blocks,
                            MakeTask make) {
  std::vector<CopyTask> tasks;
  tasks.reserve(blocks.size() * pages.runs.size());
  for (const BlockCopy& copy : blocks) {
    uint64_t flat = copy.flat;
    for (const PageRun& run : pages.runs) {
      Append(&tasks, make(run.address + copy.block * run.stride, flat, run.bytes));
      flat += run.bytes;
    }
  }
  return tasks;
}

}  // namespace

uint64_t EnginePages::block_bytes() const {
  return std::accumulate(runs.begin(), runs.end(), uint64_t{0},
                         [](uint64_t sum, const PageRun& run) { return sum + run.bytes; });
}

Status Validate(const EnginePages& pages) {
  if (pages.runs.empty()) return InvalidArgument("field 'runs': got none, expected at least 1");
  if (pages.blocks == 0) return InvalidArgument("field 'blocks': got 0, expected at least 1");
  for (size_t i = 0; i < pages.runs.size(); ++i) {
    const PageRun& run = pages.runs[i];
    if (run.address == 0 || run.bytes == 0) {
      return InvalidArgument("field 'runs[{}]': got {} bytes at address {}, expected both above 0",
                             i, run.bytes, run.address);
    }
    if (run.stride < run.bytes) {
      return InvalidArgument("field 'runs[{}].stride': got {}, expected at least its {} bytes", i,
                             run.stride, run.bytes);
    }
    uint64_t end = 0;
    if (__builtin_mul_overflow(run.stride, uint64_t{pages.blocks}, &end) ||
        __builtin_add_overflow(run.address, end, &end)) {
      return InvalidArgument(
          "field 'runs[{}]': got {} blocks, {} bytes apart, at address {}, expected addresses "
          "below 2^64",
          i, pages.blocks, run.stride, run.address);
    }
  }
  return OkStatus();
}

std::vector<CopyTask> GatherTasks(const EnginePages& pages, std::span<const BlockCopy> blocks) {
  return Tasks(pages, blocks, [](uint64_t page, uint64_t flat, uint64_t bytes) {
    return CopyTask{.to = flat, .from = page, .bytes = bytes};
  });
}

std::vector<CopyTask> ScatterTasks(const EnginePages& pages, std::span<const BlockCopy> blocks) {
  return Tasks(pages, blocks, [](uint64_t page, uint64_t flat, uint64_t bytes) {
    return CopyTask{.to = page, .from = flat, .bytes = bytes};
  });
}

}  // namespace cairn::pages
