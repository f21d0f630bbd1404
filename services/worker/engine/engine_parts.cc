#include "services/worker/engine/engine_parts.h"

#include <algorithm>
#include <utility>

#include "common/config/config.h"
#include "common/log/log.h"
#include "common/memory/machine_memory.h"
#include "services/worker/engine/engine_memory.h"
#include "services/worker/engine/option_check.h"
#include "services/worker/engine/worker_device.h"
#include "services/worker/reading/near_memory.h"
#include "services/worker/reading/rotation_calibration.h"
#include "services/worker/scheduling/batch_scheduler.h"

namespace cairn::worker {
namespace {

constexpr uint64_t kMinKvPoolBytes = 256ull << 20;

Status LoadModel(EngineParts& parts) {
  WorkerEngine::Options& options = parts.options;
  CAIRN_ASSIGN_OR_RETURN(parts.model, Model::Load(options.model_path));
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
  uint64_t bytes = given, least = given;
  if (given == 0) {
    const uint64_t sequence = kv.bytes_for(parts.options.max_context);
    least = std::max(kMinKvPoolBytes, sequence);
    bytes = std::max(kMinKvPoolBytes, 2 * sequence);
  } else {
    // Pages cost memory when they are first used: a pool that is too large would end the process
    // then.
    CAIRN_RETURN_IF_ERROR(CheckFits(
        ReadMachineMemory(), bytes,
        fmt::format("kv_pool: got {}, which is {} MiB", config::FormatBytes(given), bytes >> 20),
        "lower kv_pool"));
  }
  CAIRN_ASSIGN_OR_RETURN(parts.memory, FitMemory(&parts.options, bytes, least, kv.page_bytes(),
                                                 parts.transformer->memory()));
  bytes = parts.options.kv_pool_bytes;
  CAIRN_ASSIGN_OR_RETURN(parts.pool, KvPool::Create(kv, bytes));
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
    // Only the recipe's selection counts, and nothing needs a name.
    CAIRN_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(inputs.recipe));
    CAIRN_ASSIGN_OR_RETURN(parts.selection, SelectionOf(recipe, inputs));
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(parts.ns, WorkerNamespace(inputs));
  CAIRN_ASSIGN_OR_RETURN(parts.selection, SelectionOf(parts.ns->recipe, inputs));
  CAIRN_ASSIGN_OR_RETURN(parts.codec, KvCodec::Create(*parts.ns, inputs.kv, *parts.clock));
  CAIRN_ASSIGN_OR_RETURN(
      parts.published, PublishedNamespaces(std::move(inputs), parts.options.publish, *parts.clock));
  return OkStatus();
}

Status MakeReading(EngineParts& parts) {
  const WorkerEngine::Options& options = parts.options;
  if (options.read_policy.empty()) return OkStatus();
  ReadingTerms terms;
  CAIRN_ASSIGN_OR_RETURN(terms.policy, ParseReadPolicy(options.read_policy));
  terms.budget = {.bytes = options.kv_budget, .requests = options.max_running};
  terms.heads = parts.model->hp().heads;
  terms.backend = &kernels::BestCpuBackend();
  terms.clock = parts.clock;
  if (terms.policy.rotation != 0) {
    CAIRN_ASSIGN_OR_RETURN(
        KeyRotations rotations,
        LoadKeyRotations(options.calibration, {.digest = terms.policy.rotation,
                                               .weights = parts.model->weights_digest(),
                                               .kv = parts.transformer->kv_layout()}));
    terms.rotations = std::make_shared<const KeyRotations>(std::move(rotations));
  }
  const KvLayout& kv = parts.transformer->kv_layout();
  CAIRN_RETURN_IF_ERROR(CheckReading(terms, kv));
  // Prompts without a whole block could still be answered.
  const auto least =
      ShareBudget(terms.policy, kv, kv.block_tokens, kv.bytes_for(kv.block_tokens), terms.budget);
  if (!least.ok()) log::Warn("kv_budget_too_small", {{"error", Message(least.status())}});
  if (parts.cache != nullptr && parts.codec->raw() && IndexStore::Keeps(terms.policy)) {
    parts.indexes = std::make_unique<const IndexStore>(*parts.cache, parts.ns->spec, terms.policy,
                                                       IndexStore::Options{});
    terms.indexes = parts.indexes.get();
  }
  parts.reading = std::move(terms);
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
