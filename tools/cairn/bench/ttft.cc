#include <chrono>
#include <cmath>

#include "tools/cairn/bench/test_node.h"
#include "tools/cairn/bench/workloads.h"
#include "tools/cairn/generator/generator.h"

namespace cairn::cli::bench {
namespace {

constexpr uint64_t kHostBytes = uint64_t{1} << 30;
constexpr int kTries = 20;

// Time to first token of one prompt by a worker in this process: computed, and with its prefix from
// the node. Verified by the logits, which must be the same bits.
class Ttft final : public Workload {
 public:
  explicit Ttft(const BenchOptions& options) : options_(options) {}

  Status Prepare() override {
    CAIRN_ASSIGN_OR_RETURN(node_, TestNode::Start(options_, {.host_bytes = kHostBytes}));
    CAIRN_ASSIGN_OR_RETURN(
        worker_, StartLocalWorker(
                     {.model_path = options_.model, .cache_address = node_->address(), .tls = {}}));
    CAIRN_RETURN_IF_ERROR(WaitForCache(*worker_, true, std::chrono::seconds(10)));
    // Computes the prompt and stores it.
    CAIRN_RETURN_IF_ERROR(Ask(false).status());
    return worker_->WaitIdle(std::chrono::seconds(60));
  }

  Result<std::vector<Metric>> Trial(double) override {
    CAIRN_ASSIGN_OR_RETURN(const worker::GenerateSummary cold, Ask(/*no_cache=*/true));
    CAIRN_ASSIGN_OR_RETURN(const worker::GenerateSummary warm, AskFetched());
    if (cold.prompt_logits_sha256 != warm.prompt_logits_sha256) {
      return Errorf(StatusCode::kDataLoss, "the cache changed the logits");
    }
    return std::vector<Metric>{
        {"computed", "ms", cold.ttft_seconds * 1e3},
        {"fetched", "ms", warm.ttft_seconds * 1e3},
        {"speed-up", "x", cold.ttft_seconds / warm.ttft_seconds},
        {"prompt", "tokens", static_cast<double>(warm.prompt_tokens)},
        {"from the cache", "tokens", static_cast<double>(warm.fetched_tokens)}};
  }

  std::vector<pid_t> Children() const override { return node_->Pids(); }

 private:
  // The prefix comes from the node. A worker computes what it can while it fetches, and a short
  // prompt may be computed before the first block is there: such a trial says nothing of fetching.
  Result<worker::GenerateSummary> AskFetched() {
    for (int tries = 0; tries < kTries; ++tries) {
      CAIRN_ASSIGN_OR_RETURN(worker::GenerateSummary warm, Ask(/*no_cache=*/false));
      if (warm.fetched_tokens > 0) return warm;
      if (warm.miss_reason != MissReason::kDeadline) {
        return Errorf(StatusCode::kInternal, "nothing was fetched, reason {}",
                      Name(warm.miss_reason));
      }
    }
    return Errorf(StatusCode::kFailedPrecondition,
                  "in {} tries the worker computed the prompt before a block of it came: "
                  "expected a longer prompt or a larger model",
                  kTries);
  }
  Result<worker::GenerateSummary> Ask(bool no_cache) {
    worker::GenerateRequest request;
    request.prompt = worker::RawPrompt{options_.prompt};
    request.max_tokens = 1;
    request.no_cache = no_cache;
    request.want_logits_digest = true;
    return worker_->Generate(request, {});
  }

  const BenchOptions options_;
  std::unique_ptr<TestNode> node_;
  std::unique_ptr<Generator> worker_;
};

}  // namespace

std::unique_ptr<Workload> NewTtft(const BenchOptions& options) {
  return std::make_unique<Ttft>(options);
}

}  // namespace cairn::cli::bench
