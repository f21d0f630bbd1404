#include "services/router/relay/model_list.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace cairn::router {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxModels = 1024;
constexpr size_t kMaxIdBytes = 512;
constexpr int kMaxDepth = 32;

uint32_t ContextOf(const Json& model) {
  const auto found = model.find("max_model_len");
  if (found == model.end() || !found->is_number_unsigned()) return 0;
  const uint64_t value = found->get<uint64_t>();
  return value > std::numeric_limits<uint32_t>::max() ? 0 : static_cast<uint32_t>(value);
}

}  // namespace

Result<std::vector<EngineModel>> ParseModelList(std::string_view body) {
  // Deeper values are left out: printing them takes a frame of the stack for each level.
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= kMaxDepth; };
  const Json json = Json::parse(body, shallow, /*allow_exceptions=*/false);
  const auto data = json.is_object() ? json.find("data") : json.end();
  if (!json.is_object() || data == json.end() || !data->is_array()) {
    return InvalidArgument("expected an object with a list 'data'");
  }
  std::vector<EngineModel> models;
  for (const Json& model : *data) {
    if (models.size() >= kMaxModels) break;
    const auto id = model.is_object() ? model.find("id") : model.end();
    if (!model.is_object() || id == model.end() || !id->is_string()) continue;
    const auto& text = *id->get_ptr<const std::string*>();
    if (text.empty() || text.size() > kMaxIdBytes) continue;
    models.push_back({.id = text,
                      .context_tokens = ContextOf(model),
                      .object = model.dump(-1, ' ', false, Json::error_handler_t::replace)});
  }
  return models;
}

}  // namespace cairn::router
