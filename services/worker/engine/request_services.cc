#include "services/worker/engine/request_services.h"

#include <utility>

#include "services/worker/engine/methods.h"

namespace cairn::worker {
namespace {

// Tokens of an answer that get room at a time. Most answers end within one or two of these, and
// taking pages costs nothing.
constexpr int64_t kAnswerStep = 256;

PromptServices ServicesOf(const EngineParts& parts, EngineCache* cache) {
  PromptServices services{.transformer = *parts.transformer, .clock = *parts.clock};
  if (cache == nullptr) return services;
  services.session = &cache->session();
  services.push = &cache->push();
  services.urgent = &cache->urgent_push();
  services.published = parts.published;
  services.stages = cache->stages();
  return services;
}

MethodServices MethodServicesOf(const EngineParts& parts, EngineCache* cache, Executor* executor,
                                Wakeup& wakeup) {
  MethodServices services{.transformer = *parts.transformer,
                          .model = *parts.model,
                          .pool = *parts.pool,
                          .clock = *parts.clock,
                          .make_room =
                              [cache] {
                                if (cache != nullptr) cache->push().DropPending();
                              },
                          .match_deadline = parts.options.spill.match_deadline};
  if (cache == nullptr) return services;
  services.client = &cache->client();
  services.session = &cache->session();
  services.codec = parts.codec.get();
  services.push = &cache->push();
  services.own_push = &cache->turn_push();
  services.executor = executor;
  services.wakeup = &wakeup;
  return services;
}

}  // namespace

RequestServices::RequestServices(const EngineParts& parts, EngineCache* cache, Executor* executor,
                                 Hooks hooks)
    : prompt_kv_(ServicesOf(parts, cache)) {
  const MethodServices services = MethodServicesOf(parts, cache, executor, hooks.wakeup);
  if (parts.stage != nullptr) staged_prompts_ = parts.stage->NewWays(services);
  if (cache != nullptr && !staged() && parts.codec->raw()) {
    turned_prompts_ = methods::NewTurnedPrompts(services);
  }
  const std::string no_spill = WhyNoSpill(parts, cache);
  if (no_spill.empty()) {
    spill_.emplace(SpillServices{.client = cache->client(),
                                 .session = cache->session(),
                                 .executor = *executor,
                                 .push = cache->spill_push(),
                                 .turn = spill_turn_,
                                 .wakeup = hooks.wakeup,
                                 .background = &cache->push(),
                                 .options = parts.options.spill,
                                 .read_by_rows = parts.reading != nullptr,
                                 .count = std::move(hooks.spilled)});
  }
  request_parts_.emplace(RequestParts{
      .model = *parts.model,
      .transformer = *parts.transformer,
      .pool = *parts.pool,
      .pool_bytes = parts.options.kv_pool_bytes,
      .clock = *parts.clock,
      .prompt_kv = prompt_kv_,
      .staged = staged_prompts_.get(),
      .turned = turned_prompts_.get(),
      .reading = parts.reading.get(),
      .spill = spill_ ? &*spill_ : nullptr,
      .no_spill = no_spill,
      .cancel_all = hooks.cancel_all,
      .reserve = std::move(hooks.reserve),
      .company = std::move(hooks.company),
      // Neither rows that are selected nor contexts that are read by rows can be parked.
      .answer_step = staged() || parts.reading != nullptr ? 0 : kAnswerStep,
      .spare_pages = std::move(hooks.spare_pages),
  });
}

std::string RequestServices::WhyNoSpill(const EngineParts& parts, const EngineCache* cache) const {
  const auto block_tokens = static_cast<uint32_t>(parts.pool->layout().block_tokens);
  if (cache == nullptr) return "this worker has no cache node";
  if (staged()) return "this worker's recipe selects tokens";
  if (parts.codec->lossy() || !parts.codec->raw()) {
    return fmt::format("this worker's recipe '{}' is not raw", parts.options.recipe);
  }
  if (EarlierKv::kUnitTokens % block_tokens != 0) {
    return fmt::format("its blocks have {} tokens, expected a divisor of {}", block_tokens,
                       EarlierKv::kUnitTokens);
  }
  return "";
}

}  // namespace cairn::worker
