#pragma once
// Answers who holds how much of a prompt: Router::Holders.

#include <span>
#include <variant>
#include <vector>

#include "services/router/engine/router.h"
#include "services/router/index/prefix_index.h"
#include "services/router/registry/worker_registry.h"

namespace cairn::router {

// Most first, and by id. INVALID_ARGUMENT: no worker has blocks of this size. UNAVAILABLE: none has
// told what it has.
std::variant<std::vector<PromptHolder>, GenerateError> FindHolders(
    std::span<const RegisteredWorker> workers, const HoldersQuery& query, PrefixIndex* index);

}  // namespace cairn::router
