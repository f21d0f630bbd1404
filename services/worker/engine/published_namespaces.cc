#include "services/worker/engine/published_namespaces.h"

#include <algorithm>
#include <utility>

#include "services/worker/engine/methods.h"

namespace cairn::worker {

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
    CAIRN_ASSIGN_OR_RETURN(target.stage, methods::StageOf(target.ns.recipe, inputs));
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
