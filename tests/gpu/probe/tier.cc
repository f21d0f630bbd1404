// Copies between a cache node's host tier and its device tier, next to plain copies of pinned
// memory.

#include <algorithm>
#include <cstring>

#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/device/device_tier.h"
#include "services/cache/store/tier/host_tier.h"
#include "tests/gpu/probe/probes.h"
#include "tests/gpu/probe/rows.h"

namespace cairn::gpu {
namespace {

using cache::DeviceTier;
using cache::Extent;
using cache::HostTier;

constexpr int kRank = 50;

// Parts of blocks in both tiers, and copies of all of them.
class TierProbe {
 public:
  TierProbe(Bench* bench, const ProbeOptions& options) : bench_(*bench), options_(options) {
    // A block of 64 tokens of an 8B model in turbo:4 has 2.1 MB.
    part_bytes_ = bench->tiny() ? 64 << 10 : 2 << 20;
    parts_ = bench->tiny() ? 8 : 256;
  }

  Status Run() {
    CAIRN_RETURN_IF_ERROR(OpenTiers());
    CAIRN_RETURN_IF_ERROR(FillHost());
    CAIRN_ASSIGN_OR_RETURN(const double there, bench_.Time([&] { return Promote(); }));
    for (const Part& part : host_parts_) std::ranges::fill(part.bytes, std::byte{0});
    CAIRN_ASSIGN_OR_RETURN(const double back, bench_.Time([&] { return CopyBack(); }));
    CAIRN_RETURN_IF_ERROR(CheckHost());
    CAIRN_RETURN_IF_ERROR(Report(0, "host to device through the tier: of pinned copies", there,
                                 /*to_device=*/true));
    return Report(1, "device to host through the tier: of pinned copies", back,
                  /*to_device=*/false);
  }

 private:
  struct Part {
    Extent host, device;
    std::span<std::byte> bytes;
  };
  uint64_t all_bytes() const { return part_bytes_ * parts_; }

  Status OpenTiers() {
    CAIRN_ASSIGN_OR_RETURN(host_, HostTier::Create({.capacity_bytes = all_bytes()}));
    CAIRN_ASSIGN_OR_RETURN(const auto driver, device::Driver::Load(options_.library));
    cache::DeviceTierOptions tier;
    tier.devices = {std::to_string(options_.ordinal)};
    // Half as much again: a chunk holds whole parts only.
    tier.pool.capacity_bytes = all_bytes() * 3 / 2;
    tier.pool.chunk_bytes = std::min<uint64_t>(tier.pool.chunk_bytes, all_bytes() / 2);
    CAIRN_ASSIGN_OR_RETURN(
        device_, DeviceTier::Create(
                     tier, {.driver = driver, .host = host_.get(), .clock = &SteadyClock::Get()}));
    return OkStatus();
  }

  Status FillHost() {
    const auto length = static_cast<uint32_t>(part_bytes_);
    for (uint64_t i = 0; i < parts_; ++i) {
      Part part;
      CAIRN_ASSIGN_OR_RETURN(part.host, host_->Reserve(length));
      CAIRN_ASSIGN_OR_RETURN(part.device, device_->ReserveOf("probe", length));
      part.bytes = host_->Map(part.host);
      Fill(i, part.bytes);
      host_parts_.push_back(part);
    }
    return OkStatus();
  }
  // Other bytes in each part.
  static void Fill(uint64_t part, std::span<std::byte> bytes) {
    uint64_t state = 0x9e3779b97f4a7c15 + part;
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      state = state * 0x5851f42d4c957f2d + 0x14057b7ef767814f;
      std::memcpy(bytes.data() + i, &state, 8);
    }
  }
  Status CheckHost() const {
    std::vector<std::byte> expected(part_bytes_);
    for (uint64_t i = 0; i < parts_; ++i) {
      Fill(i, expected);
      if (std::ranges::equal(expected, host_parts_[i].bytes)) continue;
      return Errorf(StatusCode::kDataLoss, "part {} came back with other bytes", i);
    }
    return OkStatus();
  }

  // Calls copy(part, done) for all parts, and waits for all.
  template <typename Copy>
  Status ForAll(Copy copy) {
    {
      MutexLock lock(mu_);
      left_ = parts_;
      status_ = OkStatus();
    }
    for (const Part& part : host_parts_) copy(part, [this](const Status& s) { Ended(s); });
    MutexLock lock(mu_);
    none_left_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return left_ == 0; });
    return status_;
  }
  void Ended(const Status& status) {
    MutexLock lock(mu_);
    if (status_.ok()) status_ = status;
    if (--left_ == 0) none_left_.NotifyAll();
  }
  Status Promote() {
    return ForAll([&](const Part& part, cache::IoCallback done) {
      device_->Write(part.device, {}, part.bytes, std::move(done));
    });
  }
  Status CopyBack() {
    return ForAll([&](const Part& part, cache::IoCallback done) {
      device_->Read(part.device, part.bytes, std::move(done));
    });
  }

  Status Report(int row, const std::string& what, double seconds, bool to_device) {
    CAIRN_ASSIGN_OR_RETURN(const std::span<std::byte> pinned, bench_.AllocatePinned(all_bytes()));
    CAIRN_ASSIGN_OR_RETURN(const uint64_t memory, bench_.Allocate(all_bytes()));
    CAIRN_RETURN_IF_ERROR(bench_.stream().Fill("the device's bytes", memory, 1, all_bytes()));
    const auto at = reinterpret_cast<uint64_t>(pinned.data());
    const device::CopyTask task{
        .to = to_device ? memory : at, .from = to_device ? at : memory, .bytes = all_bytes()};
    CAIRN_ASSIGN_OR_RETURN(const double plain, bench_.Time([&] {
      return bench_.stream().Copy("a plain copy", {&task, 1});
    }));
    uint64_t detour = 0;
    for (const auto& stats : device_->GetDeviceStats()) detour += stats.detour_bytes;
    Print({.rank = kRank + row,
           .what = what,
           .value = plain / seconds,
           .unit = "ratio",
           .floor = "0.85",
           .goal = "0.95",
           .note = fmt::format("{:.4g} GB/s{}", static_cast<double>(all_bytes()) / seconds / 1e9,
                               detour == 0 ? "" : ", through buffers: pinning was refused")});
    return OkStatus();
  }

  Bench& bench_;
  const ProbeOptions& options_;
  uint64_t part_bytes_ = 0, parts_ = 0;
  std::unique_ptr<HostTier> host_;
  std::unique_ptr<DeviceTier> device_;
  std::vector<Part> host_parts_;
  Mutex mu_;
  CondVar none_left_;
  uint64_t left_ ABSL_GUARDED_BY(mu_) = 0;  // Copies under way.
  Status status_ ABSL_GUARDED_BY(mu_);      // The first that is not OK.
};

}  // namespace

Status ProbeTier(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  return TierProbe(bench.get(), options).Run();
}

}  // namespace cairn::gpu
