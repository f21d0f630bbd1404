#pragma once
// Reads JSON objects that strangers send: bounds before anything is built, and errors that name the
// field, what it had and what was expected. For the parsers of this folder alone: it shows a type
// of nlohmann's.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "services/router/http/api_error.h"

namespace cairn::router {

// Deeper, or with more values, a body is refused before anything is built from it: an empty object
// takes 2 bytes of a body and 40 times that in memory.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr size_t kMaxJsonValues = 1 << 19;

// For people: a list by its length, a long text by its beginning.
std::string Shown(const nlohmann::json& value);

// The object that `body` is, or what is wrong with it. Pure: any thread.
std::variant<nlohmann::json, ApiError> ParseJsonObject(std::string_view body);

// Reads the fields of one object, and keeps the first error. After an error all that it reads are
// defaults. Not thread-safe.
class JsonFields {
 public:
  // `object` must outlive it.
  explicit JsonFields(const nlohmann::json& object) : object_(object) {}

  // nullptr: absent, or null, which means the same.
  const nlohmann::json* Find(const char* name) const;
  void Fail(const std::string& param, const nlohmann::json& value, std::string_view expected,
            std::string code = "invalid_value");
  void FailWith(const std::string& param, std::string message, std::string code);
  bool failed() const { return error_.has_value(); }
  // REQUIRES: failed().
  ApiError error() const { return *error_; }

  bool Bool(const char* name);
  std::optional<double> Real(const char* name, double least, double most);
  std::optional<int64_t> Integer(const char* name, int64_t least, int64_t most);
  // Empty: absent.
  std::string Text(const char* name);
  // For fields that change nothing here.
  void TextOnly(const char* name) { (void)Text(name); }

 private:
  const nlohmann::json& object_;
  std::optional<ApiError> error_;
};

}  // namespace cairn::router
