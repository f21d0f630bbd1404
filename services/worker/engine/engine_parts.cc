#include "services/worker/engine/engine_parts.h"

#include <algorithm>
#include <utility>

#include "common/config/config.h"
#include "common/log/log.h"
#include "common/memory/machine_memory.h"
#include "services/worker/engine/engine_memory.h"
#include "services/worker/engine/methods.h"
#include "services/worker/engine/option_check.h"
#include "services/worker/engine/worker_device.h"
#include "services/worker/scheduling/batch_scheduler.h"

namespace cairn::worker {
namespace {

constexpr uint64_t kMinKvPoolBytes = 256ull << 20;

Status LoadModel(EngineParts& parts) {
  WorkerEngine::Options& options = parts.options;
  CAIRN_ASSIGN_OR_RETURN(parts.model, model::Model::Load(options.model_path));
  const auto context = parts.model->hp().context;
  if (options.max_context < 0 || options.max_context > context) {
    return InvalidArgument("context: got {}, expected 0 to {}", options.max_context, context);
  }
  if (options.max_context == 0) options.max_context = context;
  Transformer::Options compute;
  compute.arithmetic = options.arithmetic;
  compute.threads = options.threads;
  compute.max_context = options.max_context;
  CAIRN_ASSIGN_OR_RETURN(compute.device, OpenWorkerDevice(options.device, options.device_library));
  compute.device_kv_bytes = static_cast<int64_t>(options.device_kv_bytes);
  CAIRN_ASSIGN_OR_RETURN(parts.transformer, Transformer::Create(*parts.model, compute));
  return OkStatus();
}

Status MakePool(EngineParts& parts) {
  const KvLayout& kv = parts.transformer->kv_layout();
  const uint64_t given = parts.options.kv_pool_bytes;
  MemoryNeeds needs{.pool = given,
                    .least_pool = given,
                    .page = kv.page_bytes(),
                    .taken = parts.transformer->memory()};
  if (given == 0) {
    const uint64_t sequence = kv.bytes_for(parts.options.max_context);
    needs.least_pool = std::max(kMinKvPoolBytes, sequence);
    needs.pool = std::max(kMinKvPoolBytes, 2 * sequence);
  } else {
    // Pages cost memory when they are first used: a pool that is too large would end the process
    // then.
    CAIRN_RETURN_IF_ERROR(CheckFits(
        ReadMachineMemory(), given,
        fmt::format("kv_pool: got {}, which is {} MiB", config::FormatBytes(given), given >> 20),
        "lower kv_pool"));
  }
  if (!parts.options.read_policy.empty()) {
    CAIRN_ASSIGN_OR_RETURN(
        const methods::NearNeeds near,
        methods::NearNeedsOf(parts.options.read_policy, kv, parts.options.max_context));
    needs.near = near.most;
    needs.least_near = near.least;
  }
  CAIRN_ASSIGN_OR_RETURN(parts.memory, FitMemory(&parts.options, needs));
  CAIRN_ASSIGN_OR_RETURN(parts.pool, KvPool::Create(kv, parts.options.kv_pool_bytes));
  return OkStatus();
}

Status MakeNamespaces(EngineParts& parts) {
  NamespaceInputs inputs;
  inputs.tenant = parts.options.tenant;
  inputs.salt = parts.options.salt;
  inputs.model = parts.model->name();
  inputs.weights = parts.model->weights_digest();
  inputs.kv = parts.transformer->kv_layout();
  inputs.numerics = parts.transformer->numerics_id();
  inputs.recipe = parts.options.recipe;
  inputs.calibration = parts.options.calibration;
  if (parts.cache == nullptr) {
    // Only the recipe's stage counts, and nothing needs a name.
    CAIRN_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(inputs.recipe));
    CAIRN_ASSIGN_OR_RETURN(parts.stage, methods::StageOf(recipe, inputs));
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(parts.ns, WorkerNamespace(inputs));
  CAIRN_ASSIGN_OR_RETURN(parts.stage, methods::StageOf(parts.ns->recipe, inputs));
  CAIRN_ASSIGN_OR_RETURN(parts.codec, KvCodec::Create(*parts.ns, inputs.kv, *parts.clock));
  CAIRN_ASSIGN_OR_RETURN(
      parts.published, PublishedNamespaces(std::move(inputs), parts.options.publish, *parts.clock));
  return OkStatus();
}

Status MakeReading(EngineParts& parts) {
  const WorkerEngine::Options& options = parts.options;
  if (options.read_policy.empty()) return OkStatus();
  const bool keeps_indexes = parts.cache != nullptr && parts.codec->raw();
  CAIRN_ASSIGN_OR_RETURN(parts.reading, methods::NewContextOpener(
                                            {.policy = options.read_policy,
                                             .budget = options.kv_budget,
                                             .requests = options.max_running,
                                             .heads = parts.model->hp().heads,
                                             .kv = parts.transformer->kv_layout(),
                                             .weights = parts.model->weights_digest(),
                                             .calibration = options.calibration,
                                             .clock = *parts.clock,
                                             .client = keeps_indexes ? parts.cache.get() : nullptr,
                                             .spec = keeps_indexes ? &parts.ns->spec : nullptr}));
  return OkStatus();
}

}  // namespace

Result<EngineParts> LoadEngineParts(const WorkerEngine::Options& options,
                                    std::unique_ptr<client::CacheClient> cache,
                                    std::unique_ptr<Scheduler> scheduler, const Clock& clock) {
  CAIRN_RETURN_IF_ERROR(CheckOptions(options));
  EngineParts parts;
  parts.options = options;
  parts.clock = &clock;
  parts.cache = std::move(cache);
  parts.accounts = std::make_unique<TenantAccounts>(options.tenant_terms);
  parts.scheduler = std::move(scheduler);
  CAIRN_RETURN_IF_ERROR(LoadModel(parts));
  CAIRN_RETURN_IF_ERROR(MakePool(parts));
  if (parts.scheduler == nullptr) {
    parts.scheduler = std::make_unique<BatchScheduler>(
        BatchScheduler::Options{.max_running = options.max_running,
                                .block_tokens = parts.pool->layout().block_tokens,
                                .decode_share = options.decode_share},
        *parts.accounts);
  }
  CAIRN_RETURN_IF_ERROR(MakeNamespaces(parts));
  CAIRN_RETURN_IF_ERROR(MakeReading(parts));
  return parts;
}

}  // namespace cairn::worker
