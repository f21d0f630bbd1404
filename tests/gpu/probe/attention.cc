#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "cairn/kernels/batch/forward_kernels.h"
#include "tests/gpu/probe/kv_pool.h"
#include "tests/gpu/probe/probes.h"
#include "tests/gpu/probe/products.h"
#include "tests/gpu/probe/rows.h"
#include "tests/support/half.h"

namespace cairn::gpu {
namespace {

using kernels::batch::DecodeAttentionArgs;
using kernels::batch::ForwardKernels;
using kernels::batch::PooledPromptAttentionArgs;
using kernels::batch::PromptAttentionArgs;
using kernels::batch::PromptChunk;
using kernels::batch::SequenceKv;

class AttentionProbe {
 public:
  AttentionProbe(Bench* bench, const ForwardKernels& table, double copy_rate,
                 const ProductRates& products)
      : bench_(*bench), table_(table), copy_rate_(copy_rate), products_(products) {
    const bool tiny = bench->tiny();
    sequences_ = tiny ? 2 : 16;
    tokens_ = tiny ? 128 : 16384;
  }

  Status Run() {
    CAIRN_RETURN_IF_ERROR(FillPages());
    scale_ = 1 / std::sqrt(static_cast<float>(kv_.form().head_dim));
    CAIRN_RETURN_IF_ERROR(RunDecode());
    return RunPrompt();
  }

 private:
  int64_t Width() const { return kv_.query_width(); }
  int64_t PagesOf() const { return tokens_ / kv_.form().block_tokens; }

  // Pages of all sequences, and queries of all rows.
  Status FillPages() {
    CAIRN_ASSIGN_OR_RETURN(kv_, KvPool::Make(&bench_, sequences_ * tokens_));
    std::mt19937 rng(6);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> row(static_cast<size_t>(Width()));
    for (uint16_t& number : row) number = testing::ToHalf(normal(rng));
    CAIRN_ASSIGN_OR_RETURN(q_, bench_.AllocateOf<uint16_t>(Width() * MostRows()));
    const auto q = reinterpret_cast<uint64_t>(q_);
    const uint64_t bytes = row.size() * sizeof(uint16_t);
    CAIRN_RETURN_IF_ERROR(bench_.Move(q, reinterpret_cast<uint64_t>(row.data()), bytes));
    CAIRN_RETURN_IF_ERROR(bench_.Repeat(q, bytes, MostRows()));
    CAIRN_ASSIGN_OR_RETURN(out_, bench_.AllocateOf<uint16_t>(Width() * MostRows()));
    return OkStatus();
  }
  int64_t MostRows() const { return std::max(sequences_, prompt_rows()); }
  int64_t prompt_rows() const { return bench_.tiny() ? 64 : 4096; }

  Status RunDecode() {
    std::vector<SequenceKv> sequences;
    for (int64_t i = 0; i < sequences_; ++i) {
      sequences.push_back(
          {.pages = kv_.pages() + i * PagesOf(), .prefix = nullptr, .tokens = tokens_});
    }
    DecodeAttentionArgs args;
    args.kv = kv_.form();
    CAIRN_ASSIGN_OR_RETURN(args.sequences, bench_.Upload(sequences));
    args.q = q_;
    args.out = out_;
    args.rows = sequences_;
    args.q_stride = args.out_stride = Width();
    args.most_splits = kernels::batch::SplitsOf(0, tokens_);
    args.scale = scale_;
    CAIRN_ASSIGN_OR_RETURN(args.scratch,
                           bench_.AllocateOf<float>(kernels::batch::DecodeScratchFloats(
                               sequences_, args.most_splits, kv_.form())));
    CAIRN_ASSIGN_OR_RETURN(const double seconds, bench_.TimeKernel("attend_decode", [&] {
      return table_.attend_decode(bench_.stream().native(), args);
    }));
    const double rate = static_cast<double>(kv_.bytes()) / seconds;
    Print({.rank = 300,
           .what = "decode attention, paged: its KV, of a copy in the device",
           .value = rate / copy_rate_,
           .unit = "ratio",
           .floor = "0.6",
           .goal = "0.85",
           .note = fmt::format("{:.4g} GB/s", rate / 1e9)});
    return OkStatus();
  }

  Status RunPrompt() {
    const int64_t rows = prompt_rows();
    const PromptChunk chunk{.kv = {.pages = kv_.pages(), .prefix = nullptr, .tokens = 0},
                            .rows = rows};
    PromptAttentionArgs args;
    args.kv = kv_.form();
    CAIRN_ASSIGN_OR_RETURN(args.chunks, bench_.Upload(std::vector<PromptChunk>{chunk}));
    args.count = 1;
    args.most_rows = rows;
    args.q = q_;
    args.out = out_;
    args.q_stride = args.out_stride = Width();
    args.scale = scale_;
    // Two products with every key that a row sees.
    const double seen = static_cast<double>(rows) * static_cast<double>(rows + 1) / 2;
    const double operations = 4 * seen * static_cast<double>(Width());
    CAIRN_ASSIGN_OR_RETURN(const double seconds, bench_.TimeKernel("attend_prompt", [&] {
      return table_.attend_prompt(bench_.stream().native(), args);
    }));
    PrintPrompt(310, "prefill attention", operations / seconds);
    if (table_.attend_pooled_prompt == nullptr) {
      PrintSkipped(311, "prefill attention with warp groups",
                   "the device is not of compute capability 9.0");
      return OkStatus();
    }
    PooledPromptAttentionArgs pooled;
    pooled.attention = args;
    pooled.pool = kv_.memory();
    pooled.pool_bytes = kv_.bytes();
    CAIRN_ASSIGN_OR_RETURN(const double faster, bench_.TimeKernel("attend_pooled_prompt", [&] {
      return table_.attend_pooled_prompt(bench_.stream().native(), pooled);
    }));
    PrintPrompt(311, "prefill attention with warp groups", operations / faster);
    return OkStatus();
  }

  void PrintPrompt(int rank, const std::string& what, double rate) {
    const std::optional<double> limit = products_.blas ? products_.blas : products_.ours;
    if (!limit) return PrintSkipped(rank, what, "no product to compare it with");
    Print({.rank = rank,
           .what = what + (products_.blas ? ": of cuBLAS's rate" : ": of our products' rate"),
           .value = rate / *limit,
           .unit = "ratio",
           // The targets are shares of cuBLAS's rate.
           .floor = products_.blas ? "0.4" : "-",
           .goal = products_.blas ? "0.7" : "-",
           .note = fmt::format("{:.4g} TFLOP/s", rate / 1e12)});
  }

  Bench& bench_;
  const ForwardKernels& table_;
  const double copy_rate_;
  const ProductRates& products_;
  KvPool kv_;
  int64_t sequences_ = 0, tokens_ = 0;
  float scale_ = 1;
  uint16_t* q_ = nullptr;
  uint16_t* out_ = nullptr;
};

}  // namespace

Status ProbeAttention(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  const ForwardKernels* table = nullptr;
  // The one with more entries, where the device has it.
  for (const char* name :
       {kernels::batch::kForwardTable90aName, kernels::batch::kForwardTableName}) {
    if (table != nullptr) break;
    CAIRN_ASSIGN_OR_RETURN(
        table, bench->FindTable<ForwardKernels>(name, kernels::batch::kForwardTableVersion));
  }
  if (table == nullptr) {
    PrintSkipped(300, "rates of attention", "the library has no table of the forward pass");
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const double copy_rate, CopyRate(bench.get()));
  CAIRN_ASSIGN_OR_RETURN(const ProductRates products, MeasureProducts(bench.get()));
  return AttentionProbe(bench.get(), *table, copy_rate, products).Run();
}

}  // namespace cairn::gpu
