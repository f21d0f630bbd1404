#include "services/worker/session/worker_namespace.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/selections/registry.h"
#include "services/worker/session/head_calibration.h"

namespace cairn::worker {

Result<CheckedNamespace> WorkerNamespace(const NamespaceInputs& inputs) {
  const auto heads = static_cast<uint32_t>(inputs.kv.kv_heads);
  const auto dim = static_cast<uint32_t>(inputs.kv.head_dim);
  NativeLayout native;
  native.groups.push_back(
      {.count = static_cast<uint32_t>(inputs.kv.layers),
       .planes = {{"k", heads, dim, DType::kF16}, {"v", heads, dim, DType::kF16}}});
  native.kv_heads = heads;
  native.key_rotation = KeyRotation::kAfterRope;

  NamespaceSpec spec;
  spec.tenant = inputs.tenant;
  spec.salt = inputs.salt;
  spec.model = inputs.model;
  spec.revision = inputs.weights.Hex();
  spec.layout.block_tokens = static_cast<uint32_t>(inputs.kv.block_tokens);
  spec.layout.form = std::move(native);
  spec.recipe = inputs.recipe;
  spec.numerics = inputs.numerics;
  return CheckNamespace(spec);
}

Result<std::unique_ptr<const selections::Selection>> SelectionOf(const Recipe& recipe,
                                                                 const NamespaceInputs& inputs) {
  if (!recipe.selection) return std::unique_ptr<const selections::Selection>();
  const auto& [info, values] = *recipe.selection;
  std::optional<selections::HeadScores> heads;
  if (const auto digest = selections::CalibrationOf(*info, values)) {
    CAIRN_ASSIGN_OR_RETURN(heads,
                           LoadHeadScores(inputs.calibration, {.digest = *digest,
                                                               .method = info->name,
                                                               .weights = inputs.weights,
                                                               .layers = inputs.kv.layers,
                                                               .kv_heads = inputs.kv.kv_heads}));
  }
  std::unique_ptr<const selections::Selection> made =
      selections::MakeSelection(info->name, values, heads ? &*heads : nullptr);
  if (made == nullptr) {
    return InvalidArgument("option 'recipe': the selection of '{}' cannot be made", inputs.recipe);
  }
  return made;
}

Result<std::vector<PublishedNamespace>> PublishedNamespaces(NamespaceInputs inputs,
                                                            std::span<const std::string> recipes,
                                                            const Clock& clock) {
  CAIRN_ASSIGN_OR_RETURN(const CheckedNamespace own, WorkerNamespace(inputs));
  std::vector<Digest> seen = {own.fingerprint};
  std::vector<PublishedNamespace> published;
  for (const std::string& recipe : recipes) {
    inputs.recipe = recipe;
    PublishedNamespace& target = published.emplace_back();
    CAIRN_ASSIGN_OR_RETURN(target.ns, WorkerNamespace(inputs));
    CAIRN_ASSIGN_OR_RETURN(target.codec, KvCodec::Create(target.ns, inputs.kv, clock));
    CAIRN_ASSIGN_OR_RETURN(target.selection, SelectionOf(target.ns.recipe, inputs));
    if (std::ranges::find(seen, target.ns.fingerprint) != seen.end()) {
      return InvalidArgument(
          "cache.publish: got '{}' twice, or as the worker's own recipe, expected each recipe once",
          recipe);
    }
    seen.push_back(target.ns.fingerprint);
  }
  return published;
}

}  // namespace cairn::worker
