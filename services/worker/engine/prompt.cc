#include "services/worker/engine/prompt.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "model/utf8.h"

namespace cairn::worker {
namespace {

constexpr size_t kMaxTraceLength = 64;

Status CheckTrace(const std::string& trace) {
  const bool legal = trace.size() <= kMaxTraceLength &&
                     std::all_of(trace.begin(), trace.end(),
                                 [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
  if (legal) return OkStatus();
  return InvalidArgument("field 'trace': got {} characters, expected at most {} of [A-Za-z0-9-]",
                         trace.size(), kMaxTraceLength);
}

bool ValidUtf8Text(std::string_view text) { return model::ValidUtf8Prefix(text) == text.size(); }

Status CheckStops(const std::vector<std::string>& stops) {
  if (stops.size() > model::kMaxStops) {
    return InvalidArgument("field 'stop': got {} texts, expected at most {}", stops.size(),
                           model::kMaxStops);
  }
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty() || stops[i].size() > model::kMaxStopBytes) {
      return InvalidArgument("field 'stop[{}]': got {} bytes, expected 1 to {}", i, stops[i].size(),
                             model::kMaxStopBytes);
    }
    if (!ValidUtf8Text(stops[i])) {
      return InvalidArgument("field 'stop[{}]': got bytes that are not UTF-8, expected text", i);
    }
  }
  return OkStatus();
}

// Checks the fields that order the request among others.
Status CheckOrder(const GenerateRequest& request) {
  if (request.priority < model::kLeastPriority || request.priority > model::kGreatestPriority) {
    return InvalidArgument("field 'priority': got {}, expected {} to {}", request.priority,
                           model::kLeastPriority, model::kGreatestPriority);
  }
  const bool printable =
      std::ranges::all_of(request.tenant, [](unsigned char c) { return c > ' ' && c != 0x7f; });
  if (request.tenant.size() > model::kMaxTenantBytes || !printable ||
      !ValidUtf8Text(request.tenant)) {
    return InvalidArgument(
        "field 'tenant': got {} bytes, expected at most {} of UTF-8 without spaces",
        request.tenant.size(), model::kMaxTenantBytes);
  }
  return OkStatus();
}

// Text that cannot fit the context however long its tokens are is refused before the work of making
// tokens of it.
Status CheckLength(const model::Model& model, uint32_t context_tokens, size_t bytes) {
  const size_t most = context_tokens * model.tokenizer().max_token_bytes();
  if (bytes <= most) return OkStatus();
  return InvalidArgument("got {} bytes, expected at most {} for {} tokens", bytes, most,
                         context_tokens);
}

Result<std::vector<model::TokenId>> EncodeChat(const model::Model& model, uint32_t context_tokens,
                                               const std::vector<model::ChatMessage>& messages,
                                               bool add_generation_prompt) {
  CAIRN_ASSIGN_OR_RETURN(const model::ChatTemplate* chat_template, model.chat_template());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<model::PromptPiece> pieces,
                         chat_template->Render(messages, add_generation_prompt));
  size_t bytes = 0;
  for (const model::PromptPiece& piece : pieces) bytes += piece.text.size();
  CAIRN_RETURN_IF_ERROR(CheckLength(model, context_tokens, bytes));
  return model.tokenizer().EncodePrompt(pieces);
}

Result<std::vector<model::TokenId>> Tokens(const model::Model& model, uint32_t context_tokens,
                                           const ChatPrompt& chat) {
  if (chat.messages.empty() || chat.messages.size() > model::kMaxMessages) {
    return InvalidArgument("field 'chat.messages': got {} messages, expected 1 to {}",
                           chat.messages.size(), model::kMaxMessages);
  }
  auto tokens = EncodeChat(model, context_tokens, chat.messages, /*add_generation_prompt=*/true);
  if (!tokens.ok()) return Annotate(tokens.status(), "field 'chat'");
  return tokens;
}

Result<std::vector<model::TokenId>> Tokens(const model::Model& model, uint32_t context_tokens,
                                           const RawPrompt& raw) {
  const Status length = CheckLength(model, context_tokens, raw.text.size());
  if (!length.ok()) return Annotate(length, "field 'raw_text'");
  auto tokens = model.tokenizer().Encode(raw.text, /*parse_special=*/true);
  if (!tokens.ok()) return Annotate(tokens.status(), "field 'raw_text'");
  return tokens;
}

Result<std::vector<model::TokenId>> Tokens(const model::Model& model, uint32_t /*context_tokens*/,
                                           const TokenPrompt& prompt) {
  const model::TokenId vocab = model.tokenizer().vocab_size();
  for (size_t i = 0; i < prompt.ids.size(); ++i) {
    if (prompt.ids[i] < 0 || prompt.ids[i] >= vocab) {
      return InvalidArgument("field 'tokens.ids[{}]': got {}, expected 0 to {}", i, prompt.ids[i],
                             vocab - 1);
    }
  }
  return prompt.ids;
}

Status CheckScore(const model::Model& model, const GenerateRequest& request, size_t prompt_tokens,
                  uint32_t room, uint32_t block_tokens) {
  const std::vector<model::TokenId>& ids = request.score_tokens;
  if (ids.empty()) return OkStatus();
  const size_t most = std::min<size_t>(room, kMaxScoreTokens);
  if (ids.size() > most) {
    return InvalidArgument("field 'continuation': got {} tokens, expected 1 to {}", ids.size(),
                           most);
  }
  if (prompt_tokens % block_tokens != 0) {
    return InvalidArgument("field 'context': got {} tokens, expected a multiple of {}",
                           prompt_tokens, block_tokens);
  }
  const model::TokenId vocab = model.tokenizer().vocab_size();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return InvalidArgument("field 'continuation.ids[{}]': got {}, expected 0 to {}", i, ids[i],
                             vocab - 1);
    }
  }
  return OkStatus();
}

// A prompt that goes from one worker to another.
Status CheckApart(const GenerateRequest& request) {
  if (request.await_prefill < Duration(0) || request.await_prefill > kMaxAwaitPrefill) {
    return InvalidArgument("field 'await_prefill': got {} s, expected 0 to {} s",
                           Seconds(request.await_prefill), Seconds(kMaxAwaitPrefill));
  }
  if (!request.prefill_only) return OkStatus();
  if (request.no_cache) {
    return InvalidArgument("field 'prefill_only': got true with no_cache, expected one of them");
  }
  if (request.await_prefill > Duration(0)) {
    return InvalidArgument("field 'await_prefill': got {} s with prefill_only, expected 0",
                           Seconds(request.await_prefill));
  }
  if (!request.score_tokens.empty()) {
    return InvalidArgument("field 'prefill_only': got true with a continuation, expected none");
  }
  return OkStatus();
}

Status DropOldest(uint32_t context_tokens, uint32_t block_tokens, const GenerateRequest& request,
                  PreparedPrompt* prompt) {
  const auto refuse = [](std::string_view with) {
    return InvalidArgument("field 'drop_oldest': got true with {}, expected one of them", with);
  };
  if (!request.score_tokens.empty()) return refuse("a continuation");
  if (request.prefill_only) return refuse("prefill_only");
  if (request.await_prefill > Duration(0)) return refuse("await_prefill");
  const int64_t dropped =
      DroppedTokens(std::ssize(prompt->tokens), request.max_tokens, context_tokens, block_tokens);
  if (dropped < 0) {
    return InvalidArgument(
        "field 'max_tokens': got {}, expected less: with room for them in the context of {} "
        "tokens, nothing is left of the prompt",
        request.max_tokens, context_tokens);
  }
  if (dropped == 0) return OkStatus();
  prompt->dropped = dropped;
  prompt->whole = prompt->tokens;
  const auto begin = prompt->tokens.begin() + block_tokens;
  prompt->tokens.erase(begin, begin + dropped);
  return OkStatus();
}

}  // namespace

int64_t DroppedTokens(int64_t tokens, int64_t answer, int64_t context, int64_t block_tokens) {
  const int64_t over = tokens + answer - context;
  if (over <= 0) return 0;
  const int64_t step = std::max<int64_t>(1, context / 4 / block_tokens) * block_tokens;
  const int64_t dropped = (over + step - 1) / step * step;
  return block_tokens + dropped < tokens ? dropped : -1;
}

Result<PreparedPrompt> PreparePrompt(const model::Model& model, uint32_t context_tokens,
                                     uint32_t block_tokens, const GenerateRequest& request) {
  CAIRN_RETURN_IF_ERROR(Validate(request.sampling));
  CAIRN_RETURN_IF_ERROR(CheckTrace(request.trace));
  CAIRN_RETURN_IF_ERROR(CheckStops(request.stop));
  CAIRN_RETURN_IF_ERROR(CheckOrder(request));
  CAIRN_RETURN_IF_ERROR(CheckApart(request));
  if (request.max_tokens < 1 || request.max_tokens > context_tokens) {
    return InvalidArgument("field 'max_tokens': got {}, expected 1 to {}", request.max_tokens,
                           context_tokens);
  }
  PreparedPrompt prompt;
  CAIRN_ASSIGN_OR_RETURN(
      prompt.tokens,
      std::visit([&](const auto& form) { return Tokens(model, context_tokens, form); },
                 request.prompt));
  if (request.drop_oldest) {
    CAIRN_RETURN_IF_ERROR(DropOldest(context_tokens, block_tokens, request, &prompt));
  }
  if (prompt.tokens.empty() || prompt.tokens.size() >= context_tokens) {
    return InvalidArgument("field 'prompt': got {} tokens, expected 1 to {}", prompt.tokens.size(),
                           context_tokens - 1);
  }
  if (request.prefix_end > prompt.tokens.size()) {
    return InvalidArgument("field 'prefix_end': got {}, expected at most the prompt's {} tokens",
                           request.prefix_end, prompt.tokens.size());
  }
  const auto room = static_cast<uint32_t>(context_tokens - prompt.tokens.size());
  CAIRN_RETURN_IF_ERROR(CheckScore(model, request, prompt.tokens.size(), room, block_tokens));
  prompt.max_tokens = request.prefill_only ? 0 : std::min(request.max_tokens, room);
  return prompt;
}

std::vector<model::TokenId> FinishedTurn(const model::Model& model, uint32_t context_tokens,
                                         const GenerateRequest& request,
                                         const PreparedPrompt& prompt,
                                         const GenerateSummary& summary) {
  std::vector<model::TokenId> turn;
  if (const auto* chat = std::get_if<ChatPrompt>(&request.prompt)) {
    std::vector<model::ChatMessage> messages = chat->messages;
    messages.push_back({"assistant", summary.text});
    auto tokens = EncodeChat(model, context_tokens, messages, /*add_generation_prompt=*/false);
    if (!tokens.ok()) return {};
    turn = *std::move(tokens);
  } else {
    turn = prompt.tokens;
    turn.insert(turn.end(), summary.tokens.begin(), summary.tokens.end());
  }
  if (turn.size() > context_tokens) return {};
  return turn;
}

}  // namespace cairn::worker
