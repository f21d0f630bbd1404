#include "services/worker/engine/prompt_work.h"

#include <utility>

namespace cairn::worker {

PromptWork::PromptWork(PromptServices& all, PromptRequest wanted)
    : services(all),
      request(std::move(wanted)),
      sequence(*request.sequence),
      start(services.clock.Now()) {
  const int64_t block_tokens = services.block_tokens();
  block_seconds.resize(static_cast<size_t>((tokens() + block_tokens - 1) / block_tokens));
}

void PromptWork::NoteComputed(int64_t begin, TimePoint from) {
  const int64_t block_tokens = services.block_tokens();
  report.timeline.push_back(
      {TimelineSpan::Kind::kCompute, TimelineSpan::kAllLayers,
       static_cast<uint32_t>(begin / block_tokens),
       static_cast<uint32_t>((sequence.length() + block_tokens - 1) / block_tokens),
       Seconds(from - start), Seconds(services.clock.Now() - start)});
}

}  // namespace cairn::worker
