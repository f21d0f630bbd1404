// Any bytes as the body of a query of who holds a prompt: an error that names its field, or a query
// within its bounds.
//
// First byte: by tokens or by keys. The rest is the body.

#include "services/router/http/api_keys.h"
#include "services/router/http/query_api.h"
#include "tests/fuzz/input.h"

using cairn::fuzz::Expect;
using namespace cairn::router;

CAIRN_FUZZ_ENTRY(query_api)(const uint8_t* data, size_t size) {
  cairn::fuzz::Input input(data, size);
  const QueryBy by = input.U8() % 2 == 0 ? QueryBy::kTokens : QueryBy::kHashes;
  const std::string body(input.Rest());
  const auto parsed = ParseQuery(by, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    Expect(error->status == 400 && !error->message.empty());
    Expect(error->param.empty() || error->message.find(error->param) != std::string::npos);
    return 0;
  }
  const auto& query = std::get<QueryRequest>(parsed);
  Expect(query.holders.block_tokens >= 1 && query.holders.block_tokens <= 1 << 20);
  Expect(query.tenant.empty() || IsTenant(query.tenant));
  if (const auto* ids = std::get_if<std::vector<cairn::model::TokenId>>(&query.holders.prompt)) {
    Expect(by == QueryBy::kTokens);
    for (const auto id : *ids) Expect(id >= 0);
  }
  RenderHolders(query.tenant, {{.id = query.holders.holder, .tokens = 1}});
  return 0;
}
