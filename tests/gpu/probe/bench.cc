#include "tests/gpu/probe/bench.h"

#include <algorithm>
#include <chrono>

#include "common/device/launched.h"

namespace cairn::gpu {

Result<std::unique_ptr<Bench>> Bench::Open(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const auto driver, device::Driver::Load(options.library));
  std::unique_ptr<Bench> bench(new Bench);
  bench->tiny_ = options.tiny;
  CAIRN_ASSIGN_OR_RETURN(bench->device_, driver->Open(options.ordinal));
  CAIRN_ASSIGN_OR_RETURN(bench->stream_, bench->device_->NewStream());
  CAIRN_ASSIGN_OR_RETURN(bench->end_, bench->device_->NewEvent());
  return bench;
}

Bench::~Bench() {
  if (end_) (void)Synchronize();
}

Result<uint64_t> Bench::Allocate(uint64_t bytes) {
  CAIRN_ASSIGN_OR_RETURN(device::DeviceMemory memory,
                         device_->Allocate(std::max<uint64_t>(bytes, 1), /*exportable=*/false));
  memories_.push_back(std::move(memory));
  return memories_.back().address();
}

Result<std::span<std::byte>> Bench::AllocatePinned(uint64_t bytes) {
  CAIRN_ASSIGN_OR_RETURN(device::PinnedMemory memory, device_->AllocatePinned(bytes));
  pinned_.push_back(std::move(memory));
  return pinned_.back().bytes();
}

Status Bench::Move(uint64_t to, uint64_t from, uint64_t bytes) {
  if (bytes == 0) return OkStatus();
  const device::CopyTask task{.to = to, .from = from, .bytes = bytes};
  CAIRN_RETURN_IF_ERROR(stream_.Copy("moving a probe's bytes", {&task, 1}));
  return Synchronize();
}

Status Bench::Repeat(uint64_t first, uint64_t bytes, int64_t copies) {
  // The memory doubles with each copy.
  for (uint64_t have = 1, all = static_cast<uint64_t>(copies); have < all;) {
    const uint64_t more = std::min(have, all - have);
    CAIRN_RETURN_IF_ERROR(Move(first + have * bytes, first, more * bytes));
    have += more;
  }
  return OkStatus();
}

Status Bench::Synchronize() {
  CAIRN_RETURN_IF_ERROR(stream_.Record(end_));
  return end_.Synchronize();
}

Result<double> Bench::Round(const std::function<Status()>& launch, int calls) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) CAIRN_RETURN_IF_ERROR(launch());
  CAIRN_RETURN_IF_ERROR(Synchronize());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Result<double> Bench::Time(const std::function<Status()>& launch) {
  constexpr double kRoundSeconds = 0.05;
  constexpr int kRounds = 5, kMostCalls = 10'000;
  CAIRN_ASSIGN_OR_RETURN(double once, Round(launch, 1));
  if (tiny_) return once;
  // The first call also loads code and wakes clocks.
  CAIRN_ASSIGN_OR_RETURN(once, Round(launch, 1));
  const int calls = std::clamp(static_cast<int>(kRoundSeconds / once), 1, kMostCalls);
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) {
    CAIRN_ASSIGN_OR_RETURN(const double seconds, Round(launch, calls));
    rounds.push_back(seconds / calls);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[kRounds / 2];
}

Result<double> Bench::TimeKernel(const char* what, const std::function<int()>& launch) {
  return Time([&] { return device::Launched(what, launch(), *device_); });
}

Result<double> CopyRate(Bench* bench) {
  const uint64_t bytes = bench->tiny() ? 1 << 20 : 1 << 30;
  CAIRN_ASSIGN_OR_RETURN(const uint64_t from, bench->Allocate(bytes));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t to, bench->Allocate(bytes));
  CAIRN_RETURN_IF_ERROR(bench->stream().Fill("a copy's source", from, 0x5a, bytes));
  const device::CopyTask task{.to = to, .from = from, .bytes = bytes};
  CAIRN_ASSIGN_OR_RETURN(const double seconds, bench->Time([&] {
    return bench->stream().Copy("copying in the device", {&task, 1});
  }));
  return 2 * static_cast<double>(bytes) / seconds;
}

}  // namespace cairn::gpu
