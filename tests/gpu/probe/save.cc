// The cost for an engine's step when the KV of its tokens is saved: an engine that computes a
// prompt, and the mover of pages that the connectors use.

#include <algorithm>
#include <chrono>
#include <numeric>

#include "clients/pages/page_mover.h"
#include "tests/gpu/probe/model_products.h"
#include "tests/gpu/probe/probes.h"
#include "tests/gpu/probe/rows.h"

namespace cairn::gpu {
namespace {

using pages::PageMover;

constexpr int kRank = 60;
constexpr char kWhat[] = "a save: of the step whose tokens are saved";

// Steps of an engine on the bench's stream, each of as many tokens, whose KV is then saved.
class Engine {
 public:
  Engine(Bench* bench, ModelProducts* products) : bench_(*bench), products_(*products) {}
  ~Engine() { mover_.reset(); }

  // Blocks of 16 tokens, all layers of a block in one run, as the connector asks for.
  Status Open(int64_t tokens) {
    const ModelShape shape = ShapeOf(bench_);
    constexpr int64_t kBlockTokens = 16, kNumberBytes = 2;
    const auto bytes = static_cast<uint64_t>(shape.layers * 2 * shape.kv_heads * shape.head_dim *
                                             kBlockTokens * kNumberBytes);
    blocks_.resize(static_cast<size_t>(tokens / kBlockTokens));
    std::iota(blocks_.begin(), blocks_.end(), 0u);
    const auto count = static_cast<uint32_t>(blocks_.size());
    CAIRN_ASSIGN_OR_RETURN(const uint64_t kv, bench_.Allocate(bytes * count));
    CAIRN_RETURN_IF_ERROR(bench_.stream().Fill("the engine's pages", kv, 7, bytes * count));
    CAIRN_ASSIGN_OR_RETURN(auto form,
                           pages::OpaqueForm({.runs = {{kv, bytes, bytes}}, .blocks = count},
                                             pages::SliceKernelsOf(bench_.device().get())));
    // Room for the saves of two steps, so that one need not wait for the other.
    CAIRN_ASSIGN_OR_RETURN(mover_,
                           PageMover::Create(bench_.device(), std::move(form),
                                             {.save_slots = 2 * count, .load_slots = 1}, &poller_));
    polling_ = std::make_unique<device::PollingThread>(&poller_, std::chrono::microseconds(50));
    return OkStatus();
  }

  // Seconds of each step, in the median, of steps that follow each other.
  Result<double> StepSeconds(bool save) {
    const int steps = bench_.tiny() ? 2 : 15;
    std::vector<double> seconds;
    for (int i = 0; i < steps; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      CAIRN_RETURN_IF_ERROR(products_.Launch());
      PageMover::Save saved;
      if (save) {
        CAIRN_ASSIGN_OR_RETURN(saved, mover_->SaveBlocks(bench_.stream().native(), blocks_));
      }
      // The engine needs its own stream alone. The copies out go on during the next step.
      CAIRN_RETURN_IF_ERROR(bench_.Synchronize());
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      CAIRN_RETURN_IF_ERROR(Collect(std::move(saved), save));
    }
    while (!waiting_.empty()) CAIRN_RETURN_IF_ERROR(CollectOldest());
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

 private:
  // One save may be under way while the next step runs.
  Status Collect(PageMover::Save saved, bool save) {
    if (!save) return OkStatus();
    if (saved.slots.size() != blocks_.size()) {
      return Errorf(StatusCode::kInternal, "{} of {} blocks had a slot of the ring",
                    saved.slots.size(), blocks_.size());
    }
    waiting_.push_back(std::move(saved));
    return waiting_.size() < 2 ? OkStatus() : CollectOldest();
  }
  Status CollectOldest() {
    const PageMover::Save saved = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    if (!saved.transfer->Await(SteadyClock::Get().Now() + std::chrono::seconds(20))) {
      return Errorf(StatusCode::kDeadlineExceeded, "a save did not end within 20 s");
    }
    CAIRN_RETURN_IF_ERROR(*saved.transfer->result());
    const std::span<const std::byte> bytes = mover_->save_slot(saved.slots.back());
    const bool right = std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{7}; });
    mover_->GiveBackSaveSlots(saved.slots);
    if (right) return OkStatus();
    return Errorf(StatusCode::kDataLoss, "a saved block has other bytes than its page");
  }

  Bench& bench_;
  ModelProducts& products_;
  std::vector<uint32_t> blocks_;
  device::EventPoller poller_;
  std::unique_ptr<PageMover> mover_;
  std::unique_ptr<device::PollingThread> polling_;
  std::vector<PageMover::Save> waiting_;
};

}  // namespace

Status ProbeSave(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  const int64_t tokens = bench->tiny() ? 32 : 2048;
  // Engines use cuBLAS; ours where it is not.
  auto products = ModelProducts::Make(bench.get(), tokens, ModelProducts::By::kBlas);
  const bool blas = products.ok();
  if (!blas) products = ModelProducts::Make(bench.get(), tokens, ModelProducts::By::kOurs);
  if (products.status().code() == StatusCode::kNotFound) {
    PrintSkipped(kRank, kWhat, Message(products.status()));
    return OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(products.status());
  Engine engine(bench.get(), products->get());
  CAIRN_RETURN_IF_ERROR(engine.Open(tokens));
  // The first ones wake clocks and load kernels.
  CAIRN_RETURN_IF_ERROR(engine.StepSeconds(/*save=*/true).status());
  CAIRN_ASSIGN_OR_RETURN(const double alone, engine.StepSeconds(/*save=*/false));
  CAIRN_ASSIGN_OR_RETURN(const double saving, engine.StepSeconds(/*save=*/true));
  Print({.rank = kRank,
         .what = kWhat,
         .value = saving / alone - 1,
         .unit = "ratio",
         .floor = "<=0.01",
         .goal = "<=0.003",
         .note = fmt::format("{} tokens, {:.4g} ms of {} products", tokens, alone * 1e3,
                             blas ? "cuBLAS's" : "our")});
  return OkStatus();
}

}  // namespace cairn::gpu
