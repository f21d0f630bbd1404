#include "services/worker/engine/request_services.h"

#include <utility>

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
  services.selections = cache->selections();
  return services;
}

}  // namespace

RequestServices::RequestServices(const EngineParts& parts, EngineCache* cache, Executor* executor,
                                 Hooks hooks)
    : prompt_kv_(ServicesOf(parts, cache)) {
  if (parts.selection != nullptr) {
    const PromptServices& shared = prompt_kv_.services();
    selected_prompts_.emplace(*parts.transformer, *parts.model, *parts.pool, *parts.clock,
                              *parts.selection, shared.session, shared.push);
  }
  const std::string no_spill = WhyNoSpill(parts, cache);
  if (no_spill.empty()) {
    spill_.emplace(SpillServices{.client = cache->client(),
                                 .session = cache->session(),
                                 .executor = *executor,
                                 .push = cache->spill_push(),
                                 .background = &cache->push(),
                                 .options = parts.options.spill,
                                 .read_by_rows = parts.reading.has_value(),
                                 .count = std::move(hooks.spilled)});
  }
  if (cache != nullptr && !selects() && parts.codec->raw()) {
    turn_.emplace(TurnServices{.client = cache->client(),
                               .session = cache->session(),
                               .codec = *parts.codec,
                               .push = cache->spill_push(),
                               .kernels = *kernels::BestCpuBackend().selections,
                               .kv = parts.pool->layout(),
                               .rope_dim = parts.model->hp().rope_dim,
                               .rope_base = parts.model->hp().rope_base,
                               .match_deadline = parts.options.spill.match_deadline});
  }
  request_parts_.emplace(RequestParts{
      .model = *parts.model,
      .transformer = *parts.transformer,
      .pool = *parts.pool,
      .pool_bytes = parts.options.kv_pool_bytes,
      .clock = *parts.clock,
      .prompt_kv = prompt_kv_,
      .selected_prompts = selected_prompts_ ? &*selected_prompts_ : nullptr,
      .reading = parts.reading ? &*parts.reading : nullptr,
      .turn = turn_ ? &*turn_ : nullptr,
      .spill = spill_ ? &*spill_ : nullptr,
      .no_spill = no_spill,
      .cancel_all = hooks.cancel_all,
      .reserve = std::move(hooks.reserve),
      .make_room =
          [cache] {
            if (cache != nullptr) cache->push().DropPending();
          },
      .company = std::move(hooks.company),
      // Neither rows that are selected nor contexts that are read by rows can be parked.
      .answer_step = selects() || parts.reading ? 0 : kAnswerStep,
      .spare_pages = std::move(hooks.spare_pages),
  });
}

std::string RequestServices::WhyNoSpill(const EngineParts& parts, const EngineCache* cache) const {
  const auto block_tokens = static_cast<uint32_t>(parts.pool->layout().block_tokens);
  if (cache == nullptr) return "this worker has no cache node";
  if (selects()) return "this worker's recipe selects tokens";
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
