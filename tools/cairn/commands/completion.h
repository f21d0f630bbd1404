#pragma once
// Completion scripts for shells, made from the command tree.

#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli {

struct CommandSpec {
  std::string name;
  std::string help;
  struct Option {
    std::string name;  // "--model"
    std::string help;
    bool takes_value = false;
    std::vector<std::string> values;  // The legal ones, if they are few.
  };
  std::vector<Option> options;
  std::vector<std::string> arguments;  // Legal values of a positional argument.
};

// `shell`: "bash", "zsh" or "fish"; INVALID_ARGUMENT otherwise.
Result<std::string> CompletionScript(std::string_view shell, std::string_view program,
                                     const std::vector<CommandSpec>& commands);

}  // namespace cairn::cli
