#include "tools/cairn/demo/texts.h"

#include <fstream>
#include <sstream>

#include "tools/cairn/demo/texts_data.h"

namespace cairn::cli {
namespace {

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream in{std::string(text)};
  std::string line;
  while (std::getline(in, line)) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

std::string Join(std::string_view instructions, std::string_view document) {
  return std::string(instructions) + "\n" + std::string(document);
}

}  // namespace

DemoTexts BuiltInTexts() {
  return {.shared_system = Join(texts_data::kSystem, texts_data::kQueries),
          .questions = Lines(texts_data::kQuestions),
          .chat_system = Join(texts_data::kChatSystem, texts_data::kDefinitions),
          .chat_turns = Lines(texts_data::kChat)};
}

Result<DemoTexts> TextsWithDocument(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream document;
  if (!file || !(document << file.rdbuf())) {
    return Errorf(StatusCode::kNotFound, "cannot read the document '{}', or it is empty", path);
  }
  DemoTexts texts = BuiltInTexts();
  texts.shared_system = document.str();
  // Another beginning: else the chat's first turn would find the questions' prefix.
  texts.chat_system = "You are a patient teacher. Your text:\n" + document.str();
  return texts;
}

}  // namespace cairn::cli
