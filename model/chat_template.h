#pragma once
// Chat templates: a list of messages to a prompt.
//
// GGUF files carry their template as a Jinja program. We do not run Jinja. We compare the text of
// the program with the templates that we know, and each of them has its own renderer. An unknown
// template is an error, never a guess. Immutable, thread-safe.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "model/tokenizer.h"

namespace cairn::model {

// Where text goes that has no template, for errors that callers of any kind see.
inline constexpr std::string_view kRawText = "/v1/completions, raw_text or --raw";

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant".
  std::string content;
};

class ChatTemplate {
 public:
  // UNIMPLEMENTED, which names the SHA-256 of the template: the template is not known.
  static Result<std::unique_ptr<const ChatTemplate>> FromJinja(std::string_view program);

  // The prompt, ready for Tokenizer::EncodePrompt: only the template's own markers are parsed as
  // special tokens. With add_generation_prompt the assistant's turn is opened at the end.
  // INVALID_ARGUMENT for an empty list or an unknown role, naming the message.
  Result<std::vector<PromptPiece>> Render(std::span<const ChatMessage> messages,
                                          bool add_generation_prompt) const;

  // "chatml-smollm2"
  const std::string& name() const { return name_; }
  // Comes first when the first message is not a system message. Empty: the template has none.
  const std::string& default_system() const { return default_system_; }

 private:
  ChatTemplate(std::string name, std::string default_system)
      : name_(std::move(name)), default_system_(std::move(default_system)) {}

  std::string name_;
  std::string default_system_;
};

// The prompt as one string, for people to read.
std::string ToText(std::span<const PromptPiece> pieces);

}  // namespace cairn::model
