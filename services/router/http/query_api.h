#pragma once
// POST /query and POST /query_by_hash: which worker holds how much of a prompt, in the form of
// Mooncake's RFC 1403, so that what asks such an index can ask this router.
// docs/program/http-api.md lists the fields.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "services/router/engine/router.h"
#include "services/router/http/api_error.h"

namespace cairn::router {

enum class QueryBy { kTokens, kHashes };

struct QueryRequest {
  // Without tokens and keys where the request names an adapter or a salt: nothing that the router
  // knows was computed with one.
  HoldersQuery holders = {};
  std::string tenant = {};  // Empty: it names none.
};

// Pure: any thread. An error names the field, what it got and what was expected.
std::variant<QueryRequest, ApiError> ParseQuery(QueryBy by, std::string_view body);

// {"TENANT": {"INSTANCE": {"longest_matched": tokens, "GPU": ..., "CPU": ..., "DISK": ..., "DP":
// {"0": tokens}}}}
std::string RenderHolders(const std::string& tenant, const std::vector<PromptHolder>& holders);

// The answer's JSON. `caller`: the tenant of the caller's key; empty: callers need no key.
std::variant<std::string, ApiError> AnswerQuery(QueryBy by, std::string_view body,
                                                const std::string& caller, Router* router);

}  // namespace cairn::router
