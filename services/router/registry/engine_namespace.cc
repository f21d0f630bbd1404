#include "services/router/registry/engine_namespace.h"

namespace cairn::router {

EngineNamespace MakeEngineNamespace(EngineKeys keys, uint32_t block_tokens) {
  Sha256 sha;
  sha.UpdateField("cairn.router.engine.v1");
  sha.UpdateField(keys == EngineKeys::kTokens ? "tokens" : "text");
  sha.UpdateU32(block_tokens);
  return {.fingerprint = sha.Finish(), .block_tokens = block_tokens};
}

}  // namespace cairn::router
