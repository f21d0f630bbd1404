#include "services/router/engine/run_services.h"

#include <algorithm>
#include <set>
#include <utility>

#include "services/router/engine/check_request.h"

namespace cairn::router {
namespace {

// Limit for the ids of models in an error.
constexpr size_t kMaxListedBytes = 512;

}  // namespace

RunServices::RunServices(RouterOptions given, const RouterParts& all, RouterObservers watching)
    : options(std::move(given)),
      parts(all),
      observers(std::move(watching)),
      queue({.threads = options.threads,
             .piece_bytes = options.piece_bytes,
             .long_work = parts.long_texts,
             .tenant_bytes = options.tenant_bytes,
             .setting = "tenant_text",
             .tenants = options.tenants},
            parts.executor, parts.clock) {}

Executor* RunServices::ExecutorOf(const GenerateRequest& request) const {
  return parts.long_texts != nullptr && IsLong(request) ? parts.long_texts : parts.executor;
}

bool RunServices::IsLong(const GenerateRequest& request) const {
  // An engine that is asked for tokens gets the body, which is read for that.
  const bool has_body = request.raw != nullptr && request.raw->body != nullptr;
  const uint64_t body = has_body ? request.raw->body->size() : 0;
  return std::max(PromptBytes(request), body) > options.piece_bytes;
}

uint32_t RunServices::LongestContextOf(const std::string& model) const {
  return LongestContext(parts.registry->Workers(), model);
}

std::optional<GenerateError> RunServices::CheckFits(const GenerateRequest& request, size_t tokens,
                                                    bool exact) const {
  if (!exact || tokens == 0) return std::nullopt;
  const Wanted wanted = {.model = request.model, .exact_tokens = tokens};
  uint32_t longest = 0;
  bool engine = false;
  for (const RegisteredWorker& worker : parts.registry->Workers()) {
    if (!worker.answers() || !Serves(*worker.info, request.model)) continue;
    if (Fits(*worker.info, wanted)) return std::nullopt;
    longest = std::max(longest, ContextOf(*worker.info, request.model));
    engine = worker.info->engine;
  }
  if (longest == 0) return std::nullopt;  // No worker is there, which is another error.
  return PromptError(request, Errorf(StatusCode::kOutOfRange, "got {} tokens, expected at most {}",
                                     tokens, engine ? longest : longest - 1));
}

std::optional<GenerateError> RunServices::CheckModel(const std::string& name) const {
  std::set<std::string> ids = {options.model_id};
  if (parts.prompts == nullptr) {
    if (IsModel(name)) return std::nullopt;
  } else {
    ids.clear();
    for (const RegisteredWorker& worker : parts.registry->Workers()) {
      // A worker whose models are not known may serve it.
      if (worker.info == nullptr || Serves(*worker.info, name)) return std::nullopt;
      for (const EngineModel& model : worker.info->models) ids.insert(model.id);
    }
  }
  std::string served;
  for (const std::string& id : ids) {
    if (served.size() > kMaxListedBytes) break;
    served += fmt::format("{}'{}'", served.empty() ? "" : ", ", id);
  }
  GenerateError error;
  error.status = Errorf(StatusCode::kNotFound, "field 'model': got '{}', expected {}{}", name,
                        ids.size() > 1 ? "one of " : "", served);
  error.field = "model";
  return error;
}

bool RunServices::IsModel(const std::string& name) const {
  return name.empty() || name == options.model_id ||
         std::ranges::find(options.aliases, name) != options.aliases.end();
}

void RunServices::NoteSent(const RegisteredWorker& worker, PromptKeys* keys) {
  // An engine whose events are followed says itself what it holds.
  const bool exact =
      worker.info->engine ? !worker.report->cache_node_id.empty() : options.exact_index;
  const std::vector<BlockKey>& blocks = keys->Of(*worker.info);
  if (exact || blocks.empty()) return;
  parts.index->Sent(worker.address, keys->SpaceOf(*worker.info)->fingerprint, blocks);
}

std::string RunServices::Waiting() const {
  std::string waiting;
  for (const RegisteredWorker& worker : parts.registry->Workers()) {
    if (worker.answers()) return "";
    waiting += fmt::format("{}{} ({})", waiting.empty() ? "" : ", ", worker.address, worker.reason);
  }
  return "waiting for workers: " + (waiting.empty() ? "none is named yet" : waiting);
}

}  // namespace cairn::router
