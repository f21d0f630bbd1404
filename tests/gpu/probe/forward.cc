// The parts of a worker's prefill, without the worker: its products, and the scores and budgets of
// a selection. The step `warm` compares both with the prefill itself.

#include <cmath>
#include <cstring>
#include <random>

#include "cairn/kernels/batch/unit_table.h"
#include "common/device/launched.h"
#include "tests/gpu/probe/kv_pool.h"
#include "tests/gpu/probe/model_products.h"
#include "tests/gpu/probe/probes.h"
#include "tests/gpu/probe/rows.h"

namespace cairn::gpu {
namespace {

using kernels::PoolArgs;
using kernels::ReduceRowsArgs;
using kernels::SplitBudgetArgs;
using kernels::WindowAttentionArgs;
using kernels::batch::UnitTable;

constexpr int kRank = 910;
constexpr char kProducts[] = "products of a prefill alone, each token";
constexpr char kSelection[] = "scores and budgets of ada-snapkv, all layers";

Status MeasureProductsOfPrefill(Bench* bench) {
  // As many rows as a worker computes together.
  const int64_t rows = bench->tiny() ? 64 : 1024;
  const auto products = ModelProducts::Make(bench, rows, ModelProducts::By::kOurs);
  if (products.status().code() == StatusCode::kNotFound) {
    PrintSkipped(kRank, kProducts, Message(products.status()));
    return OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(products.status());
  CAIRN_ASSIGN_OR_RETURN(const double seconds, bench->Time([&] { return (*products)->Launch(); }));
  Print({.rank = kRank,
         .what = kProducts,
         .value = seconds / static_cast<double>(rows) * 1e6,
         .unit = "us",
         .note = fmt::format("{} at a time", rows)});
  return OkStatus();
}

// SnapKV's scores of one layer, and the budgets for which its heads compete (Ada-KV): attention of
// the last queries, its mean over them, pooled over neighbours, its mean over each group of query
// heads, and the best rows of the layer.
class SelectionProbe {
 public:
  static constexpr int64_t kWindow = 32, kReach = 2;
  // Shares of all rows; of an even share, for a head.
  static constexpr double kKeep = 0.2, kLeast = 0.2;

  SelectionProbe(Bench* bench, const UnitTable& table, const KvPool& kv)
      : bench_(*bench), table_(table), kv_(kv), ranked_(kv.tokens() - kWindow) {}

  Status Run() {
    CAIRN_RETURN_IF_ERROR(Prepare());
    CAIRN_ASSIGN_OR_RETURN(const double seconds, bench_.Time([&] { return Launch(); }));
    CAIRN_RETURN_IF_ERROR(CheckRows());
    const int64_t layers = ShapeOf(bench_).layers;
    Print({.rank = kRank + 1,
           .what = kSelection,
           .value = static_cast<double>(layers) * seconds * 1e3,
           .unit = "ms",
           .note = fmt::format("{} layers of {} tokens", layers, kv_.tokens())});
    return OkStatus();
  }

 private:
  Status Prepare() {
    const int64_t heads = kv_.query_heads(), group = kv_.form().group;
    const int64_t tokens = kv_.tokens(), kv_heads = kv_.form().kv_heads;
    std::mt19937 rng(6);
    std::normal_distribution<float> normal;
    std::vector<float> queries(static_cast<size_t>(kWindow * kv_.query_width()));
    for (float& number : queries) number = normal(rng);
    CAIRN_ASSIGN_OR_RETURN(const float* const q, bench_.Upload(queries));
    CAIRN_ASSIGN_OR_RETURN(float* const weights,
                           bench_.AllocateOf<float>(heads * kWindow * tokens));
    CAIRN_ASSIGN_OR_RETURN(float* const means, bench_.AllocateOf<float>(heads * ranked_));
    CAIRN_ASSIGN_OR_RETURN(float* const pooled, bench_.AllocateOf<float>(heads * ranked_));
    CAIRN_ASSIGN_OR_RETURN(float* const scores, bench_.AllocateOf<float>(kv_heads * ranked_));
    for (int64_t head = 0; head < heads; ++head) {
      WindowAttentionArgs window;
      window.keys = {PagesOf(), false, head / group, 0, tokens};
      window.q = q + head * kv_.form().head_dim;
      window.q_stride = kv_.query_width();
      window.rows = kWindow;
      window.first_row = ranked_;
      window.scale = 1 / std::sqrt(static_cast<float>(kv_.form().head_dim));
      window.out = weights + head * kWindow * tokens;
      window.out_stride = tokens;
      windows_.push_back(window);
      means_.push_back({kernels::Reduction::kMean, window.out, kWindow, ranked_, tokens,
                        means + head * ranked_});
      pools_.push_back({means + head * ranked_, pooled + head * ranked_, ranked_, kReach, false});
    }
    for (int64_t g = 0; g < kv_heads; ++g) {
      groups_.push_back({kernels::Reduction::kMean, pooled + g * group * ranked_, group, ranked_,
                         ranked_, scores + g * ranked_});
    }
    total_ = static_cast<int64_t>(kKeep * static_cast<double>(kv_heads * ranked_));
    CAIRN_ASSIGN_OR_RETURN(
        const uint8_t* const marks,
        bench_.Upload(std::vector<uint8_t>(static_cast<size_t>(kv_heads * ranked_))));
    CAIRN_ASSIGN_OR_RETURN(uint8_t* const taken, bench_.AllocateOf<uint8_t>(kv_heads * ranked_));
    CAIRN_ASSIGN_OR_RETURN(rows_, bench_.AllocateOf<int64_t>(kv_heads));
    budget_ = {.scores = scores,
               .marks = marks,
               .heads = kv_heads,
               .tokens = ranked_,
               .least = static_cast<int64_t>(kLeast * kKeep * static_cast<double>(ranked_)),
               .total = total_,
               .taken = taken,
               .rows = rows_};
    return OkStatus();
  }

  kernels::PagedKv PagesOf() const {
    const kernels::batch::KvForm& form = kv_.form();
    kernels::PagedKv pages;
    pages.pages = kv_.pages();
    pages.block_tokens = form.block_tokens;
    pages.head_dim = form.head_dim;
    pages.v_offset = form.v_offset;
    pages.head_stride = form.head_stride;
    return pages;
  }

  template <typename Args>
  Status Issue(const char* what, kernels::batch::UnitsLaunch<Args> launch,
               const std::vector<Args>& units) {
    return device::Launched(
        what, launch(bench_.stream().native(), {units.data(), static_cast<int64_t>(units.size())}),
        *bench_.device());
  }
  Status Launch() {
    CAIRN_RETURN_IF_ERROR(Issue("window_attention", table_.window_attention, windows_));
    CAIRN_RETURN_IF_ERROR(Issue("means", table_.reduce_rows, means_));
    CAIRN_RETURN_IF_ERROR(Issue("pool", table_.pool, pools_));
    CAIRN_RETURN_IF_ERROR(Issue("groups", table_.reduce_rows, groups_));
    return Issue("split_budget", table_.split_budget, std::vector<SplitBudgetArgs>{budget_});
  }

  // The heads have as many rows as there are to give, and each at least its own.
  Status CheckRows() {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> rows, bench_.Download(rows_, budget_.heads));
    int64_t sum = 0;
    for (const int64_t n : rows) {
      sum += n;
      if (n < budget_.least) {
        return Errorf(StatusCode::kDataLoss, "a head got {} rows, expected at least {}", n,
                      budget_.least);
      }
    }
    if (sum == total_) return OkStatus();
    return Errorf(StatusCode::kDataLoss, "the heads got {} rows, expected {}", sum, total_);
  }

  Bench& bench_;
  const UnitTable& table_;
  const KvPool& kv_;
  const int64_t ranked_;  // Rows outside the window, which stays.
  std::vector<WindowAttentionArgs> windows_;
  std::vector<ReduceRowsArgs> means_, groups_;
  std::vector<PoolArgs> pools_;
  SplitBudgetArgs budget_;
  int64_t total_ = 0;
  int64_t* rows_ = nullptr;
};

Status MeasureSelection(Bench* bench) {
  CAIRN_ASSIGN_OR_RETURN(const UnitTable* const table,
                         bench->FindTable<UnitTable>(kernels::batch::kUnitTableName,
                                                     kernels::batch::kUnitTableVersion));
  if (table == nullptr) {
    PrintSkipped(kRank + 1, kSelection, "the library has no table of selections");
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const KvPool kv, KvPool::Make(bench, bench->tiny() ? 128 : 32768));
  return SelectionProbe(bench, *table, kv).Run();
}

}  // namespace

Status ProbeForward(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  CAIRN_RETURN_IF_ERROR(MeasureProductsOfPrefill(bench.get()));
  return MeasureSelection(bench.get());
}

}  // namespace cairn::gpu
