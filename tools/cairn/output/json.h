#pragma once
// JSON as `--json` prints it.

#include <nlohmann/json.hpp>
#include <string>

namespace cairn::cli {

// Keeps the order in which fields were added: people read it too.
using Json = nlohmann::ordered_json;

// On one line. Bytes that are no UTF-8 become U+FFFD: a model may stop in the middle of a
// character.
inline std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}
// On many lines, with a newline at the end.
inline std::string DumpPretty(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace cairn::cli
