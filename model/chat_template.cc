#include "model/chat_template.h"

#include <utility>

#include "cairn/common/hash.h"

namespace cairn::model {
namespace {

// Programs we have a renderer for. A line break within the program is written as the escape \n (see
// Normalise).
struct KnownTemplate {
  std::string_view name;
  std::string_view program;
  std::string_view default_system;
};
constexpr KnownTemplate kKnown[] = {
    {"chatml-smollm2",
     R"({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %})"
     R"({{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging )"
     R"(Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + )"
     R"(message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %})"
     R"({{ '<|im_start|>assistant\n' }}{% endif %})",
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {"chatml",
     R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + )"
     R"(message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %})"
     R"({{ '<|im_start|>assistant\n' }}{% endif %})",
     ""},
};

// Within a Jinja string a line break and its escape mean the same, and converters write either.
// Outside of strings it is output; none of the known programs has one there, so the replacement
// cannot make a wrong match. Jinja takes CRLF for a line break, and drops one at the very end,
// which editors add. A mark of UTF-8 in front is theirs, too.
std::string Normalise(std::string_view program) {
  if (program.starts_with("\xef\xbb\xbf")) program.remove_prefix(3);
  if (program.ends_with('\n')) program.remove_suffix(1);
  if (program.ends_with('\r')) program.remove_suffix(1);
  std::string out;
  for (size_t i = 0; i < program.size(); ++i) {
    const char c = program[i];
    if (c == '\r' && program.substr(i + 1, 1) == "\n") continue;
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// Builds pieces, joining neighbours of a kind: the tokenizer must see "user\nHello" as one run.
class Pieces {
 public:
  void Special(std::string_view text) { Append(text, true); }
  void Text(std::string_view text) { Append(text, false); }
  std::vector<PromptPiece> Take() { return std::move(pieces_); }

 private:
  void Append(std::string_view text, bool special) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().parse_special != special) {
      pieces_.push_back({"", special});
    }
    pieces_.back().text += text;
  }
  std::vector<PromptPiece> pieces_;
};

void OpenTurn(Pieces& pieces, std::string_view role) {
  pieces.Special("<|im_start|>");
  pieces.Text(role);
  pieces.Text("\n");
}

void Turn(Pieces& pieces, std::string_view role, std::string_view content) {
  OpenTurn(pieces, role);
  pieces.Text(content);
  pieces.Special("<|im_end|>");
  pieces.Text("\n");
}

}  // namespace

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::FromJinja(std::string_view program) {
  const std::string normalised = Normalise(program);
  std::string names;
  for (const KnownTemplate& known : kKnown) {
    if (known.program == normalised) {
      return std::unique_ptr<const ChatTemplate>(
          new ChatTemplate(std::string(known.name), std::string(known.default_system)));
    }
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  return Errorf(StatusCode::kUnimplemented,
                "the declared chat template (tokenizer.chat_template, {} bytes, SHA-256 {}) is not "
                "supported; supported: {}. Text can be given as it is, without a template: {}",
                program.size(), Sha256::Of(program).Hex(), names, kRawText);
}

Result<std::vector<PromptPiece>> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                      bool add_generation_prompt) const {
  if (messages.empty()) return InvalidArgument("messages: got none, expected at least one");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return InvalidArgument("messages[{}].role: got '{}', expected system, user or assistant", i,
                             role);
    }
  }
  Pieces pieces;
  if (!default_system_.empty() && messages[0].role != "system") {
    Turn(pieces, "system", default_system_);
  }
  for (const ChatMessage& message : messages) Turn(pieces, message.role, message.content);
  if (add_generation_prompt) OpenTurn(pieces, "assistant");
  return pieces.Take();
}

std::string ToText(std::span<const PromptPiece> pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

}  // namespace cairn::model
