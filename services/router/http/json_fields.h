#pragma once
// Reads JSON that strangers sent: its shape first, then one field after the other.

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "services/router/http/api_error.h"

namespace cairn::router {

// Deeper, or with more values, a body is refused before anything is built from it: an empty object
// takes 2 bytes of a body and 40 times that in memory.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr size_t kMaxJsonValues = 1 << 19;

// A JSON object within these bounds, or why the body is none.
std::variant<nlohmann::json, ApiError> ParseBody(std::string_view body);

// The value of a number that is whole, however it is written: 64, 64.0 and 6.4e1 are the same in
// JSON. nullopt: no number, or not whole, or beyond int64_t.
std::optional<int64_t> WholeNumber(const nlohmann::json& value);

// A value for errors: short.
std::string Shown(const nlohmann::json& value);

class Fields;

// A list of token ids. The first entry that is none is an error of `param[index]`, and ends the
// list.
std::vector<model::TokenId> ReadTokenIds(Fields& fields, const char* param,
                                         const nlohmann::json& list);

// Reads fields, and keeps the first error. After an error all that it reads are defaults. Not
// thread-safe. The object must outlive it.
class Fields {
 public:
  explicit Fields(const nlohmann::json& object) : object_(object) {}

  // nullptr: absent, or null, which means the same.
  const nlohmann::json* Find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  void Fail(const std::string& param, const nlohmann::json& value, std::string_view expected,
            std::string code = "invalid_value") {
    FailWith(param, fmt::format("field '{}': got {}, expected {}", param, Shown(value), expected),
             std::move(code));
  }
  void FailWith(const std::string& param, std::string message, std::string code) {
    if (error_.has_value()) return;
    error_ = ApiError{.message = std::move(message), .param = param, .code = std::move(code)};
  }
  bool failed() const { return error_.has_value(); }
  ApiError error() const { return *error_; }

  bool Bool(const char* name) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return false;
    if (value->is_boolean()) return value->get<bool>();
    Fail(name, *value, "true or false");
    return false;
  }
  std::optional<double> Real(const char* name, double least, double most) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->get<double>() : least - 1;
    if (number >= least && number <= most) return number;
    Fail(name, *value, fmt::format("a number from {} to {}", least, most));
    return std::nullopt;
  }
  std::optional<int64_t> Integer(const char* name, int64_t least, int64_t most) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    const std::optional<int64_t> number = WholeNumber(*value);
    if (number && *number >= least && *number <= most) return number;
    Fail(name, *value, fmt::format("an integer from {} to {}", least, most));
    return std::nullopt;
  }
  // Empty: absent.
  std::string Text(const char* name) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    Fail(name, *value, "text");
    return {};
  }
  // For fields that change nothing here.
  void TextOnly(const char* name) { (void)Text(name); }

 private:
  const nlohmann::json& object_;
  std::optional<ApiError> error_;
};

}  // namespace cairn::router
