#include "services/worker/engine/option_check.h"

#include "common/config/config.h"
#include "common/recipe/recipe.h"
#include "services/worker/engine/methods.h"
#include "services/worker/engine/worker_device.h"

namespace cairn::worker {
namespace {

Status CheckScheduling(const WorkerEngine::Options& options) {
  if (options.queue_capacity < 1) {
    return InvalidArgument("option 'queue_capacity': got {}, expected at least 1",
                           options.queue_capacity);
  }
  if (options.max_running < 1) {
    return InvalidArgument("option 'max_running': got {}, expected at least 1",
                           options.max_running);
  }
  if (!(options.decode_share > 0 && options.decode_share < 1)) {
    return InvalidArgument("option 'decode_share': got {}, expected more than 0 and less than 1",
                           options.decode_share);
  }
  for (const auto& [tenant, terms] : options.tenant_terms) {
    if (!(terms.weight > 0)) {
      return InvalidArgument(
          "option 'tenant_terms': got weight {} for tenant '{}', expected more "
          "than 0",
          terms.weight, tenant);
    }
  }
  return OkStatus();
}

Status CheckReadOptions(const WorkerEngine::Options& options, const Recipe& recipe) {
  if (options.read_policy.empty()) {
    if (options.kv_budget == 0) return OkStatus();
    return InvalidArgument("option 'kv_budget': got {}, expected 0 without a read policy",
                           config::FormatBytes(options.kv_budget));
  }
  if (recipe.selection) {
    return InvalidArgument(
        "option 'read_policy': got '{}' with the recipe '{}', which selects tokens; expected one "
        "of the two",
        options.read_policy, options.recipe);
  }
  if (options.device != "cpu") {
    return InvalidArgument(
        "option 'read_policy': got '{}' with the device '{}', expected an empty one: contexts are "
        "read by rows on the CPU only",
        options.read_policy, options.device);
  }
  return Annotate(methods::CheckReadPolicy(options.read_policy), "read_policy");
}

}  // namespace

Status CheckOptions(const WorkerEngine::Options& options) {
  CAIRN_RETURN_IF_ERROR(CheckScheduling(options));
  CAIRN_RETURN_IF_ERROR(ParseWorkerDevice(options.device).status());
  const Result<Recipe> recipe = ParseRecipe(options.recipe);
  if (!recipe.ok()) return Annotate(recipe.status(), "option 'recipe'");
  CAIRN_RETURN_IF_ERROR(Annotate(methods::CheckStage(*recipe), "option 'recipe'"));
  for (const std::string& text : options.publish) {
    const Result<Recipe> published = ParseRecipe(text);
    const Status status = published.ok() ? methods::CheckStage(*published) : published.status();
    if (!status.ok()) return Annotate(status, "cache.publish");
  }
  return CheckReadOptions(options, *recipe);
}

}  // namespace cairn::worker
