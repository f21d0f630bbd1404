#include "services/router/http/query_api.h"

#include <limits>
#include <utility>

#include "services/router/http/api_keys.h"
#include "services/router/http/json_fields.h"

namespace cairn::router {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostBlockTokens = 1 << 20;
// The RFC's.
constexpr const char* kDefaultTenant = "default";

// The list, or nullptr and an error.
const Json* ListOf(Fields& fields, const char* name, std::string_view expected) {
  const Json* const list = fields.Find(name);
  if (list != nullptr && list->is_array()) return list;
  fields.Fail(name, list == nullptr ? Json() : *list, expected,
              list == nullptr ? "missing_required_parameter" : "invalid_value");
  return nullptr;
}

std::vector<model::TokenId> TokensOf(Fields& fields) {
  const Json* const list = ListOf(fields, "token_ids", "a list of token ids");
  if (list == nullptr) return {};
  return ReadTokenIds(fields, "token_ids", *list);
}

// The RFC's hashes are 64-bit numbers over tokens. The index has Cairn's keys alone, from which
// they cannot be made: tokens are needed.
std::vector<BlockKey> KeysOf(Fields& fields) {
  // Earlier drafts of the RFC have the other name.
  const char* const name = fields.Find("seq_hashes") == nullptr && fields.Find("block_hash")
                               ? "block_hash"
                               : "seq_hashes";
  std::vector<BlockKey> keys;
  constexpr std::string_view kExpected =
      "a list of block keys, each as text of 64 hexadecimal digits";
  const Json* const list = ListOf(fields, name, kExpected);
  if (list == nullptr) return keys;
  keys.reserve(list->size());
  for (const Json& hash : *list) {
    const std::string where = fmt::format("{}[{}]", name, keys.size());
    if (hash.is_number()) {
      fields.Fail(where, hash,
                  "a block key as text of 64 hexadecimal digits: XXH3 hashes are not known here, "
                  "use /query with token_ids",
                  "unsupported_hash");
      break;
    }
    const auto key = hash.is_string() ? BlockKey::FromHex(hash.get_ref<const std::string&>(), name)
                                      : Result<BlockKey>(InvalidArgument("no text"));
    if (!key.ok()) {
      fields.Fail(where, hash, "a block key as text of 64 hexadecimal digits");
      break;
    }
    keys.push_back(*key);
  }
  return keys;
}

// Whether the request has an adapter or a salt, under which other KV belongs to the same tokens.
bool IsApart(Fields& fields) {
  const bool named = !fields.Text("lora_name").empty();
  const bool salted = !fields.Text("cache_salt").empty();
  const auto id = fields.Integer("lora_id", 0, std::numeric_limits<int32_t>::max());
  return named || salted || id.value_or(0) > 0;
}

}  // namespace

std::variant<QueryRequest, ApiError> ParseQuery(QueryBy by, std::string_view body) {
  const auto parsed = ParseBody(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  Fields fields(std::get<Json>(parsed));
  QueryRequest request;
  request.holders.model = fields.Text("model");
  if (by == QueryBy::kTokens) {
    request.holders.prompt = TokensOf(fields);
  } else {
    request.holders.prompt = KeysOf(fields);
  }
  const auto block_tokens = fields.Integer("block_size", 1, kMostBlockTokens);
  if (!block_tokens.has_value()) {
    fields.Fail("block_size", Json(), fmt::format("an integer from 1 to {}", kMostBlockTokens),
                "missing_required_parameter");
  }
  request.holders.block_tokens = static_cast<uint32_t>(block_tokens.value_or(0));
  request.holders.holder = fields.Text("instance_id");
  request.tenant = fields.Text("tenant_id");
  if (!request.tenant.empty() && !IsTenant(request.tenant)) {
    fields.Fail("tenant_id", Json(request.tenant),
                fmt::format("at most {} bytes without spaces", kMaxTenantBytes));
  }
  if (IsApart(fields)) request.holders.prompt = std::vector<BlockKey>();
  if (fields.failed()) return fields.error();
  return request;
}

std::string RenderHolders(const std::string& tenant, const std::vector<PromptHolder>& holders) {
  Json instances = Json::object();
  for (const PromptHolder& holder : holders) {
    instances[holder.id] = {{"longest_matched", holder.tokens},
                            {"GPU", holder.device_tokens},
                            {"CPU", holder.host_tokens},
                            {"DISK", holder.disk_tokens},
                            {"DP", {{"0", holder.tokens}}}};
  }
  return Json({{tenant, std::move(instances)}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::variant<std::string, ApiError> AnswerQuery(QueryBy by, std::string_view body,
                                                const std::string& caller, Router* router) {
  auto parsed = ParseQuery(by, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  const auto& request = std::get<QueryRequest>(parsed);
  if (!caller.empty() && !request.tenant.empty() && request.tenant != caller) {
    return ApiError{.status = 403,
                    .message = fmt::format("field 'tenant_id': got '{}', expected '{}', the "
                                           "caller's, or no such field",
                                           request.tenant, caller),
                    .param = "tenant_id",
                    .code = "wrong_tenant"};
  }
  const auto found = router->Holders(request.holders);
  if (const auto* error = std::get_if<GenerateError>(&found)) return FromRouter(*error);
  const std::string& tenant = !caller.empty()           ? caller
                              : !request.tenant.empty() ? request.tenant
                                                        : kDefaultTenant;
  return RenderHolders(tenant, std::get<std::vector<PromptHolder>>(found));
}

}  // namespace cairn::router
