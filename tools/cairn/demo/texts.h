#pragma once
// The demo's texts (examples/demo/README.md says where they are from), compiled in.

#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli {

struct DemoTexts {
  std::string shared_system;           // Instructions and document: what all questions share.
  std::vector<std::string> questions;  // 8.
  std::string chat_system;
  std::vector<std::string> chat_turns;  // The user's words in each turn.
};

DemoTexts BuiltInTexts();

// The same questions and turns about another text, which is all of the questions' system message
// and most of the chat's. NOT_FOUND when the file cannot be read.
Result<DemoTexts> TextsWithDocument(const std::string& path);

}  // namespace cairn::cli
