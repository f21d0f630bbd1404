#include "services/router/rpc/engine_config.h"

#include <algorithm>

namespace cairn::router {
namespace {

using std::chrono::seconds;

constexpr uint64_t kBytesOfToken = 4;

Status Check(const EngineConfig& c) {
  if (c.text_block % kBytesOfToken != 0) {
    return InvalidArgument("engines.text_block: got {}, expected a multiple of {} bytes",
                           c.text_block, kBytesOfToken);
  }
  return OkStatus();
}

}  // namespace

bool AsksForTokens(const EngineConfig& c, bool follows_events) {
  return c.tokens == "tokenize" || (c.tokens == "auto" && follows_events);
}

void Register(config::Schema& schema, EngineConfig& c) {
  schema.Text("engines.tokens", &c.tokens,
              "Where the tokens of prompts for engines come from, for the decision. auto: the "
              "setting model if it is set; otherwise POST /tokenize of the engines if their events "
              "are followed; otherwise the prompt's text stands for them. tokenize: also without "
              "events. text: always the text.",
              {.choices = {"auto", "tokenize", "text"}});
  schema.Integer("engines.block_tokens", &c.block_tokens,
                 "Tokens in a block of the engines' own cache, as they report it.",
                 {.min = 1, .max = 4096, .unit = "tokens"});
  schema.Bytes("engines.text_block", &c.text_block,
               "Size of a block where a prompt's text stands for its tokens: prefixes are compared "
               "in these steps. A multiple of 4.",
               {.min = 4, .max = 64 << 10});
  schema.Integer("engines.cache_tokens", &c.cache_tokens,
                 "Tokens that an engine's own cache holds. For an engine without events, the "
                 "router believes that it holds the last ones of these that were sent to it.",
                 {.min = 1024, .max = 1u << 31, .unit = "tokens"});
  schema.Text("engines.api_key_file", &c.api_key_file,
              "File with the API key that engines get, in its first line. Read again when it "
              "changes. Empty: they get none.",
              {.env = "CAIRN_ENGINES_API_KEY_FILE"});
  schema.Text("engines.ca", &c.authorities,
              "PEM file with the authorities that sign the certificates of https engines. Empty: "
              "those of the system.");
  schema.Time("engines.load_interval", &c.load_interval,
              "How often the router works out how loaded each engine is.",
              {.min = std::chrono::milliseconds(1), .max = seconds(1)});
  schema.Time("engines.silence", &c.silence,
              "Most time in which an engine sends nothing while it works on a request. Then it "
              "has failed.",
              {.min = seconds(1), .max = std::chrono::hours(24)});
  schema.Bytes("engines.max_answer", &c.max_answer,
               "Longest answer of an engine that is not a stream.",
               {.min = 1 << 10, .max = 1 << 30});
  schema.Integer("engines.threads", &c.threads, "Threads that pass answers of engines on.",
                 {.min = 1, .max = 64, .unit = "threads"});
  schema.Check([&c] { return Check(c); });
}

bool IsEngine(const std::string& worker) {
  std::string_view url = worker;
  if (url.starts_with("dns:")) url.remove_prefix(4);
  return url.starts_with("http://") || url.starts_with("https://");
}

EngineLinkOptions LinkOptions(const EngineConfig& c) {
  return {.silence = c.silence,
          .max_answer_bytes = c.max_answer,
          .block_tokens = c.block_tokens,
          .load_interval = c.load_interval};
}

PromptReader::Options ReaderOptions(const EngineConfig& c, bool follows_events,
                                    size_t cache_bytes) {
  PromptReader::Options options;
  options.tokenize = AsksForTokens(c, follows_events);
  options.block_tokens = c.block_tokens;
  options.text_block_bytes = static_cast<uint32_t>(c.text_block);
  options.cache_bytes = options.tokenize ? cache_bytes : 0;
  return options;
}

uint32_t SentBlocks(const EngineConfig& c, bool has_model, bool follows_events) {
  const bool text = c.tokens == "text" || (!has_model && !AsksForTokens(c, follows_events));
  const uint64_t block = text ? c.text_block / kBytesOfToken : c.block_tokens;
  return static_cast<uint32_t>(std::max<uint64_t>(1, c.cache_tokens / block));
}

}  // namespace cairn::router
