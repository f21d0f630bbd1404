#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "cairn/kernels/batch/slice_table.h"
#include "tests/gpu/probe/probes.h"
#include "tests/gpu/probe/rows.h"
#include "tests/support/half.h"

namespace cairn::gpu {
namespace {

using kernels::HashRun;
using kernels::HeadCoding;
using kernels::MovePagesArgs;
using kernels::PlaneForm;
using kernels::SliceForm;
using kernels::SlicesArgs;
using kernels::SliceTask;
using kernels::batch::SliceTable;

// The coding, and the shares of a copy in the device that the issue wants of it.
struct Coding {
  const char* name;
  HeadCoding k, v;
  int32_t parameter;
  int decode_rank;
};
constexpr Coding kCodings[] = {
    {"turbo:4", HeadCoding::kTurbo, HeadCoding::kTurbo, 4, 200},
    {"int4", HeadCoding::kInt4Channel, HeadCoding::kInt4Token, 64, 201},
    {"int8", HeadCoding::kInt8, HeadCoding::kInt8, 64, 202},
};

class SliceProbe {
 public:
  SliceProbe(Bench* bench, const SliceTable& table, double copy_rate)
      : bench_(*bench),
        table_(table),
        copy_rate_(copy_rate),
        heads_(bench->tiny() ? 2 : 8),
        dim_(bench->tiny() ? 64 : 128),
        tokens_(bench->tiny() ? 16 : 64),
        count_(bench->tiny() ? 2 : 2048) {}

  Status Run() {
    CAIRN_RETURN_IF_ERROR(FillNumbers());
    for (const Coding& coding : kCodings) CAIRN_RETURN_IF_ERROR(RunCoding(coding));
    CAIRN_RETURN_IF_ERROR(RunCacheGen());
    return RunPages();
  }

 private:
  int64_t Numbers() const { return int64_t{heads_} * tokens_ * dim_; }
  void* stream() { return bench_.stream().native(); }

  // Normally distributed, the same in every slice.
  Status FillNumbers() {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> slice(static_cast<size_t>(Numbers()));
    for (uint16_t& number : slice) number = testing::ToHalf(normal(rng));
    const uint64_t bytes = slice.size() * sizeof(uint16_t);
    for (uint16_t** plane : {&k_, &v_}) {
      CAIRN_ASSIGN_OR_RETURN(*plane, bench_.AllocateOf<uint16_t>(Numbers() * count_));
      const auto at = reinterpret_cast<uint64_t>(*plane);
      CAIRN_RETURN_IF_ERROR(bench_.Move(at, reinterpret_cast<uint64_t>(slice.data()), bytes));
      CAIRN_RETURN_IF_ERROR(bench_.Repeat(at, bytes, count_));
    }
    CAIRN_ASSIGN_OR_RETURN(faults_, bench_.AllocateOf<uint32_t>(count_));
    return bench_.stream().Fill("no faults yet", reinterpret_cast<uint64_t>(faults_), 0,
                                static_cast<uint64_t>(count_) * sizeof(uint32_t));
  }

  PlaneForm Plane(HeadCoding coding, int32_t parameter) const {
    return {.coding = coding,
            .parameter = parameter,
            .heads = heads_,
            .dim = dim_,
            .head_stride = int64_t{tokens_} * dim_,
            .token_stride = dim_};
  }
  // Not at a sequence's start, so that no row stays as it is.
  std::vector<SliceTask> Tasks() const {
    std::vector<SliceTask> tasks(static_cast<size_t>(count_));
    for (int64_t i = 0; i < count_; ++i) {
      SliceTask& task = tasks[static_cast<size_t>(i)];
      task.k = k_ + i * Numbers();
      task.v = v_ + i * Numbers();
      task.faults = faults_ + i;
      task.first_position = 64;
      task.tokens = tokens_;
      task.layer = static_cast<int32_t>(i % 32);
    }
    return tasks;
  }
  Status ExpectNoFaults(const char* what) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> faults, bench_.Download(faults_, count_));
    const auto bad = std::find_if(faults.begin(), faults.end(), [](uint32_t f) { return f != 0; });
    if (bad == faults.end()) return OkStatus();
    return Errorf(StatusCode::kDataLoss, "{}: slice {} has the faults {}, expected none", what,
                  bad - faults.begin(), *bad);
  }
  void PrintShare(int rank, const std::string& what, double bytes, double seconds,
                  const char* floor, const char* goal) {
    Print({.rank = rank,
           .what = what + ": of a copy in the device",
           .value = bytes / seconds / copy_rate_,
           .unit = "ratio",
           .floor = floor,
           .goal = goal,
           .note = fmt::format("{:.4g} GB/s", bytes / seconds / 1e9)});
  }

  Status RunCoding(const Coding& coding) {
    SliceForm form;
    form.k = Plane(coding.k, coding.parameter);
    form.v = Plane(coding.v, coding.parameter);
    std::vector<SliceTask> tasks = Tasks();
    const int64_t slice_bytes = kernels::SliceBytes(form, tasks[0]);
    CAIRN_ASSIGN_OR_RETURN(std::byte* const encoded,
                           bench_.AllocateOf<std::byte>(slice_bytes * count_));
    for (int64_t i = 0; i < count_; ++i) {
      tasks[static_cast<size_t>(i)].encoded = encoded + i * slice_bytes;
      tasks[static_cast<size_t>(i)].bytes = static_cast<uint64_t>(slice_bytes);
    }
    const SlicesArgs args{form, tasks.data(), count_};
    const double bytes =
        static_cast<double>(count_) * static_cast<double>(slice_bytes + 2 * 2 * Numbers());
    const std::string name = coding.name;
    CAIRN_ASSIGN_OR_RETURN(const double encode, bench_.TimeKernel(coding.name, [&] {
      return table_.encode_slices(stream(), args);
    }));
    CAIRN_ASSIGN_OR_RETURN(const double decode, bench_.TimeKernel(coding.name, [&] {
      return table_.decode_slices(stream(), args);
    }));
    CAIRN_RETURN_IF_ERROR(ExpectNoFaults(coding.name));
    PrintShare(coding.decode_rank, "decode " + name, bytes, decode, "0.6", "0.85");
    PrintShare(coding.decode_rank + 10, "encode " + name, bytes, encode, "0.4", "0.7");
    if (coding.decode_rank == 200) return RunHashes(encoded, slice_bytes);
    return OkStatus();
  }

  Status RunHashes(const std::byte* encoded, int64_t slice_bytes) {
    std::vector<HashRun> runs(static_cast<size_t>(count_));
    CAIRN_ASSIGN_OR_RETURN(uint64_t* const hashes, bench_.AllocateOf<uint64_t>(count_));
    for (int64_t i = 0; i < count_; ++i) {
      HashRun& run = runs[static_cast<size_t>(i)];
      run.in = encoded + i * slice_bytes;
      run.bytes = static_cast<uint64_t>(slice_bytes);
      run.hash = hashes + i;
    }
    CAIRN_ASSIGN_OR_RETURN(const double seconds, bench_.TimeKernel("hash_runs", [&] {
      return table_.hash_runs(stream(), {runs.data(), count_});
    }));
    PrintShare(220, "XXH3-64", static_cast<double>(count_ * slice_bytes), seconds, "0.5", "0.8");
    return OkStatus();
  }

  // Against the link: its bytes cross that, and should not wait for their decoding.
  Status RunCacheGen() {
    SliceForm form;
    form.k = form.v = Plane(HeadCoding::kCacheGen, 16);
    std::vector<SliceTask> tasks = Tasks();
    const int64_t most = kernels::SliceBytes(form, tasks[0]);
    // Aligned to 16 bytes each.
    const int64_t scratch_bytes = (kernels::SliceScratchBytes(form, tasks[0]) + 15) / 16 * 16;
    CAIRN_ASSIGN_OR_RETURN(std::byte* const encoded, bench_.AllocateOf<std::byte>(most * count_));
    CAIRN_ASSIGN_OR_RETURN(std::byte* const scratch,
                           bench_.AllocateOf<std::byte>(scratch_bytes * count_));
    CAIRN_ASSIGN_OR_RETURN(uint64_t* const sizes, bench_.AllocateOf<uint64_t>(count_));
    for (int64_t i = 0; i < count_; ++i) {
      SliceTask& task = tasks[static_cast<size_t>(i)];
      task.encoded = encoded + i * most;
      task.bytes = static_cast<uint64_t>(most);
      task.scratch = scratch + i * scratch_bytes;
      task.encoded_bytes = sizes + i;
    }
    const SlicesArgs args{form, tasks.data(), count_};
    CAIRN_RETURN_IF_ERROR(
        bench_.TimeKernel("cachegen", [&] { return table_.encode_slices(stream(), args); })
            .status());
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint64_t> encoded_bytes,
                           bench_.Download(sizes, count_));
    uint64_t bytes = 0;
    for (int64_t i = 0; i < count_; ++i) {
      tasks[static_cast<size_t>(i)].bytes = encoded_bytes[static_cast<size_t>(i)];
      bytes += encoded_bytes[static_cast<size_t>(i)];
    }
    CAIRN_ASSIGN_OR_RETURN(const double seconds, bench_.TimeKernel("cachegen", [&] {
      return table_.decode_slices(stream(), args);
    }));
    CAIRN_RETURN_IF_ERROR(ExpectNoFaults("cachegen"));
    CAIRN_ASSIGN_OR_RETURN(const std::span<std::byte> pinned, bench_.AllocatePinned(bytes));
    const device::CopyTask task{.to = reinterpret_cast<uint64_t>(encoded),
                                .from = reinterpret_cast<uint64_t>(pinned.data()),
                                .bytes = bytes};
    CAIRN_ASSIGN_OR_RETURN(const double link, bench_.Time([&] {
      return bench_.stream().Copy("cachegen's bytes over the link", {&task, 1});
    }));
    Print({.rank = 230,
           .what = "decode cachegen: of the pinned link's rate for its bytes",
           .value = link / seconds,
           .unit = "ratio",
           .floor = "1",
           .goal = "2",
           .note = fmt::format("{:.4g} GB/s", static_cast<double>(bytes) / seconds / 1e9)});
    return OkStatus();
  }

  // Pieces of vLLM's default layout: 16 tokens, 8 heads of 128.
  Status RunPages() {
    const uint32_t piece_bytes = bench_.tiny() ? 1024 : 64 << 10;
    const int64_t pieces = bench_.tiny() ? 2 : 32, blocks = bench_.tiny() ? 3 : 256;
    const uint64_t plane = static_cast<uint64_t>(blocks) * piece_bytes;
    std::vector<std::byte*> places;
    for (int64_t p = 0; p < pieces; ++p) {
      CAIRN_ASSIGN_OR_RETURN(const uint64_t at, bench_.Allocate(plane));
      CAIRN_RETURN_IF_ERROR(bench_.stream().Fill("pages", at, 3, plane));
      places.push_back(reinterpret_cast<std::byte*>(at));
    }
    std::vector<uint32_t> index(static_cast<size_t>(blocks));
    std::iota(index.begin(), index.end(), 0u);
    std::shuffle(index.begin(), index.end(), std::mt19937(11));
    const uint64_t bytes = plane * static_cast<uint64_t>(pieces);
    CAIRN_ASSIGN_OR_RETURN(std::byte* const to,
                           bench_.AllocateOf<std::byte>(static_cast<int64_t>(bytes)));
    MovePagesArgs args;
    args.pages = {.pieces = places.data(),
                  .piece_count = pieces,
                  .index = index.data(),
                  .blocks = blocks,
                  .stride = piece_bytes,
                  .piece_bytes = piece_bytes};
    args.blocks = to;
    args.block_stride = static_cast<uint64_t>(pieces) * piece_bytes;
    const double both = 2 * static_cast<double>(bytes);
    CAIRN_ASSIGN_OR_RETURN(const double gather, bench_.TimeKernel("gather", [&] {
      return table_.gather_pages(stream(), args);
    }));
    PrintShare(240, "gather pages", both, gather, "0.75", "0.92");
    CAIRN_ASSIGN_OR_RETURN(const double scatter, bench_.TimeKernel("scatter", [&] {
      return table_.scatter_pages(stream(), args);
    }));
    PrintShare(241, "scatter pages", both, scatter, "0.75", "0.92");
    return OkStatus();
  }

  Bench& bench_;
  const SliceTable& table_;
  const double copy_rate_;
  const int32_t heads_, dim_, tokens_;
  const int64_t count_;
  uint16_t* k_ = nullptr;
  uint16_t* v_ = nullptr;
  uint32_t* faults_ = nullptr;
};

}  // namespace

Status ProbeSlices(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  CAIRN_ASSIGN_OR_RETURN(const SliceTable* const table,
                         bench->FindTable<SliceTable>(kernels::batch::kSliceTableName,
                                                      kernels::batch::kSliceTableVersion));
  if (table == nullptr) {
    PrintSkipped(200, "rates of codecs, hashes and pages", "the library has no table of slices");
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const double copy_rate, CopyRate(bench.get()));
  return SliceProbe(bench.get(), *table, copy_rate).Run();
}

}  // namespace cairn::gpu
