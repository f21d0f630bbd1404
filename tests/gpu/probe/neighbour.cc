// The loss of a process that computes while another one copies, as an engine next to a cache node.

#include "tests/gpu/probe/probes.h"
#include "tests/gpu/probe/products.h"
#include "tests/gpu/probe/rows.h"
#include "tests/support/process.h"

namespace cairn::gpu {
namespace {

constexpr int kRank = 130;
constexpr char kWhat[] = "loss of products while another process copies both ways";

}  // namespace

Status CopyForEver(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  // As large as a chunk of the tier.
  const uint64_t bytes = bench->tiny() ? 1 << 16 : 64 << 20;
  CAIRN_ASSIGN_OR_RETURN(const std::span<std::byte> host, bench->AllocatePinned(2 * bytes));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t memory, bench->Allocate(2 * bytes));
  CAIRN_ASSIGN_OR_RETURN(device::Stream other, bench->device()->NewStream());
  CAIRN_ASSIGN_OR_RETURN(const device::Event ended, bench->device()->NewEvent());
  const auto at = reinterpret_cast<uint64_t>(host.data());
  const device::CopyTask there{.to = memory, .from = at, .bytes = bytes};
  const device::CopyTask back{.to = at + bytes, .from = memory + bytes, .bytes = bytes};
  CAIRN_RETURN_IF_ERROR(bench->stream().Fill("the device's bytes", memory, 1, 2 * bytes));
  CAIRN_RETURN_IF_ERROR(bench->Synchronize());
  for (uint64_t round = 0;; ++round) {
    CAIRN_RETURN_IF_ERROR(bench->stream().Copy("host to device", {&there, 1}));
    CAIRN_RETURN_IF_ERROR(other.Copy("device to host", {&back, 1}));
    CAIRN_RETURN_IF_ERROR(other.Record(ended));
    CAIRN_RETURN_IF_ERROR(bench->Synchronize());
    CAIRN_RETURN_IF_ERROR(ended.Synchronize());
    if (round == 0) {
      std::printf("ready\n");
      std::fflush(stdout);
    }
  }
}

Status ProbeNeighbour(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  CAIRN_ASSIGN_OR_RETURN(const ProductRates alone, MeasureProducts(bench.get()));
  const std::optional<double> before = alone.blas ? alone.blas : alone.ours;
  if (!before) {
    PrintSkipped(kRank, kWhat, "no product to measure: " + alone.why_no_blas);
    return OkStatus();
  }
  testing::Process::Options process;
  process.argv = {"/proc/self/exe", "copy-for-ever", "--device", std::to_string(options.ordinal),
                  "--library",      options.library};
  if (options.tiny) process.argv.push_back("--tiny");
  CAIRN_ASSIGN_OR_RETURN(const auto neighbour, testing::Process::Start(process));
  CAIRN_RETURN_IF_ERROR(neighbour->WaitForLine("ready", std::chrono::seconds(30)).status());
  CAIRN_ASSIGN_OR_RETURN(const ProductRates beside, MeasureProducts(bench.get()));
  if (!neighbour->running()) {
    return Errorf(StatusCode::kInternal, "the process that copies ended: {}", neighbour->err());
  }
  neighbour->Kill();
  const std::optional<double> after = beside.blas ? beside.blas : beside.ours;
  Print({.rank = kRank,
         .what = kWhat,
         .value = 1 - *after / *before,
         .unit = "ratio",
         .floor = "<=0.03",
         .goal = "<=0.01",
         .note = alone.blas ? "cuBLAS's products" : "our products"});
  return OkStatus();
}

}  // namespace cairn::gpu
