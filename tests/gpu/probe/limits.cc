#include "tests/gpu/probe/probes.h"
#include "tests/gpu/probe/products.h"
#include "tests/gpu/probe/rows.h"

namespace cairn::gpu {
namespace {

constexpr int kRank = 900;
constexpr double kGiga = 1e9, kTera = 1e12;

// Bytes a second between pinned memory of the host and the device.
Status MeasurePinned(Bench* bench) {
  const uint64_t bytes = bench->tiny() ? 1 << 20 : 512 << 20;
  CAIRN_ASSIGN_OR_RETURN(const std::span<std::byte> in, bench->AllocatePinned(bytes));
  CAIRN_ASSIGN_OR_RETURN(const std::span<std::byte> out, bench->AllocatePinned(bytes));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t device_in, bench->Allocate(bytes));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t device_out, bench->Allocate(bytes));
  const device::CopyTask to{
      .to = device_in, .from = reinterpret_cast<uint64_t>(in.data()), .bytes = bytes};
  const device::CopyTask from{
      .to = reinterpret_cast<uint64_t>(out.data()), .from = device_out, .bytes = bytes};
  const auto rate = [&](const char* what, const device::CopyTask& task) -> Result<double> {
    CAIRN_ASSIGN_OR_RETURN(const double seconds, bench->Time([&] {
      return bench->stream().Copy(what, {&task, 1});
    }));
    return static_cast<double>(bytes) / seconds;
  };
  CAIRN_RETURN_IF_ERROR(bench->stream().Fill("the device's bytes", device_out, 1, bytes));
  CAIRN_ASSIGN_OR_RETURN(const double there, rate("host to device", to));
  Print({.rank = kRank + 2,
         .what = "pinned copies, host to device",
         .value = there / kGiga,
         .unit = "GB/s"});
  CAIRN_ASSIGN_OR_RETURN(const double back, rate("device to host", from));
  Print({.rank = kRank + 3,
         .what = "pinned copies, device to host",
         .value = back / kGiga,
         .unit = "GB/s"});
  // Both ways on two streams.
  CAIRN_ASSIGN_OR_RETURN(device::Stream other, bench->device()->NewStream());
  CAIRN_ASSIGN_OR_RETURN(const device::Event ended, bench->device()->NewEvent());
  CAIRN_ASSIGN_OR_RETURN(const double both, bench->Time([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(other.Copy("device to host", {&from, 1}));
    CAIRN_RETURN_IF_ERROR(other.Record(ended));
    CAIRN_RETURN_IF_ERROR(bench->stream().Copy("host to device", {&to, 1}));
    return bench->stream().Wait(ended);
  }));
  Print({.rank = kRank + 4,
         .what = "pinned copies, both ways at once",
         .value = 2 * static_cast<double>(bytes) / both / kGiga,
         .unit = "GB/s"});
  return OkStatus();
}

}  // namespace

Status ProbeDevice(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const auto driver, device::Driver::Load(options.library));
  CAIRN_ASSIGN_OR_RETURN(const device::DeviceInfo info,
                         driver->Find(std::to_string(options.ordinal)));
  std::printf("%s, compute capability %u.%u, %.1f GiB, %u copy engines%s%s%s\n", info.name.c_str(),
              info.family_major, info.family_minor,
              static_cast<double>(info.memory_bytes) / (1 << 30), info.copy_engines,
              info.exports ? ", exports memory" : ", exports no memory",
              info.registers ? ", pins memory of others" : ", pins no memory of others",
              info.registers_read_only ? ", also what is read-only" : ", nothing read-only");
  return OkStatus();
}

Status ProbeLimits(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  CAIRN_ASSIGN_OR_RETURN(const double copy, CopyRate(bench.get()));
  Print({.rank = kRank + 1,
         .what = "copy in the device, in and out",
         .value = copy / kGiga,
         .unit = "GB/s"});
  CAIRN_RETURN_IF_ERROR(MeasurePinned(bench.get()));
  CAIRN_ASSIGN_OR_RETURN(const ProductRates rates, MeasureProducts(bench.get()));
  if (rates.blas) {
    Print({.rank = kRank + 5,
           .what = "products of cuBLAS, bfloat16",
           .value = *rates.blas / kTera,
           .unit = "TFLOP/s"});
  } else {
    PrintSkipped(kRank + 5, "products of cuBLAS, bfloat16", rates.why_no_blas);
  }
  if (!rates.ours) {
    PrintSkipped(kRank + 6, "products of ours", "the library has no table of the forward pass");
    return OkStatus();
  }
  Print({.rank = kRank + 6,
         .what = "products of ours, bfloat16",
         .value = *rates.ours / kTera,
         .unit = "TFLOP/s"});
  if (rates.blas) {
    Print({.rank = 450,
           .what = "products of ours: of cuBLAS's rate",
           .value = *rates.ours / *rates.blas,
           .unit = "ratio"});
  }
  return OkStatus();
}

}  // namespace cairn::gpu
