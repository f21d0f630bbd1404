#include <chrono>
#include <cmath>

#include "tools/cairn/bench/test_node.h"
#include "tools/cairn/bench/workloads.h"
#include "tools/cairn/generator/generator.h"

namespace cairn::cli::bench {
namespace {

constexpr uint64_t kHostBytes = uint64_t{1} << 30;

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
    CAIRN_ASSIGN_OR_RETURN(const worker::GenerateSummary warm, Ask(/*no_cache=*/false));
    if (warm.fetched_tokens == 0)
      return Errorf(StatusCode::kInternal, "nothing was fetched, reason {}",
                    Name(warm.miss_reason));
    if (cold.prompt_logits_sha256 != warm.prompt_logits_sha256)
      return Errorf(StatusCode::kDataLoss, "the cache changed the logits");
    return std::vector<Metric>{
        {"computed", "ms", cold.ttft_seconds * 1e3},
        {"fetched", "ms", warm.ttft_seconds * 1e3},
        {"speed-up", "x", cold.ttft_seconds / warm.ttft_seconds},
        {"prompt", "tokens", static_cast<double>(warm.prompt_tokens)},
        {"from the cache", "tokens", static_cast<double>(warm.fetched_tokens)}};
  }

  std::vector<pid_t> Children() const override { return node_->Pids(); }

 private:
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
