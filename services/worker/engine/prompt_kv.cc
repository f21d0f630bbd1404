#include "services/worker/engine/prompt_kv.h"

#include "services/worker/engine/prompt_run.h"

namespace cairn::worker {

PromptReport PromptKv::Compute(const PromptRequest& request) {
  PromptRun run(services_, request);
  while (true) {
    const Step step = run.Next(services_.transformer.max_rows(), /*alone=*/true);
    if (step.kind == Step::Kind::kFinished) return run.TakeReport();
    if (step.kind != Step::Kind::kChunk) continue;
    const TimePoint start = services_.clock.Now();
    const Status status = services_.transformer.Forward({&step.chunk, 1});
    run.Computed(status, {.seconds = Seconds(services_.clock.Now() - start)});
  }
}

std::optional<BlockKey> PromptKv::ContextKey(std::span<const model::TokenId> tokens) const {
  if (services_.session == nullptr) return std::nullopt;
  return services_.session->Keys(tokens).back();
}

}  // namespace cairn::worker
