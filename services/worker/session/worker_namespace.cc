#include "services/worker/session/worker_namespace.h"

#include <utility>

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

}  // namespace cairn::worker
