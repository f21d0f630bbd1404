#pragma once
// The parts of an engine. main and the tools let WorkerEngine::Create load all of it; a test
// may exchange parts before it makes an EngineCore.

#include <memory>
#include <optional>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/keys/checked_namespace.h"
#include "common/tenants/tenant_accounts.h"
#include "model/model.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/context_opener.h"
#include "services/worker/engine/published_namespaces.h"
#include "services/worker/engine/recipe_stage.h"
#include "services/worker/engine/worker_engine.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/scheduling/scheduler.h"
#include "services/worker/session/kv_codec.h"

namespace cairn::worker {

// Plain data, which EngineCore takes over. Members may refer to those above them.
struct EngineParts {
  WorkerEngine::Options options;  // max_context and kv_pool_bytes are filled in.
  const Clock* clock = nullptr;   // Required. Must outlive the engine.
  std::unique_ptr<TenantAccounts> accounts;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<KvPool> pool;
  MemoryAccount::Bounds memory = MemoryAccount::Unbounded();  // The memory bounds of the process.
  std::unique_ptr<const RecipeStage> stage;                   // Null: the recipe has none.
  std::unique_ptr<client::CacheClient> cache;                 // Null: everything is computed.
  // With a cache only.
  std::optional<CheckedNamespace> ns;
  std::unique_ptr<const KvCodec> codec;
  std::vector<PublishedNamespace> published;
  std::unique_ptr<const ContextOpener> reading;  // Null: all KV stays in the pool.
};

// Loads the model and prepares everything. Arguments and errors: those of WorkerEngine::Create.
Result<EngineParts> LoadEngineParts(const WorkerEngine::Options& options,
                                    std::unique_ptr<client::CacheClient> cache,
                                    std::unique_ptr<Scheduler> scheduler, const Clock& clock);

}  // namespace cairn::worker
