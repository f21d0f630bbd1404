#pragma once
// The inner parts of Schema, which the files that parse and print it share.

#include <fmt/ranges.h>

#include "common/config/config.h"

namespace cairn::config {

struct Schema::Field {
  std::string name;
  std::string type;
  std::string expected;  // Range for people: "an integer from 1 to 64".
  std::string doc;
  std::string env = {};
  std::function<Status(std::string_view)> parse;
  std::function<std::string()> print;  // The current value as YAML.
  std::function<Status(const std::vector<std::string>&)> parse_list = {};  // Lists only.
  bool is_bool = false;
  std::string default_yaml = {};
  std::string source = {};  // The source of the current value. Empty: it is the default.
};

// true, yes, on; false, no, off. INVALID_ARGUMENT: anything else.
Result<bool> ParseBool(std::string_view text);

struct Schema::SwitchField {
  std::string name;
  bool* target;
  std::string doc;
};

}  // namespace cairn::config
