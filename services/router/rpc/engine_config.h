#pragma once
// Settings for workers that are engines with OpenAI's API: engines.*.

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "services/router/relay/engine_link.h"
#include "services/router/relay/prompt_reader.h"

namespace cairn::router {

struct EngineConfig {
  std::string tokens = "auto";
  uint32_t block_tokens = 16;
  uint64_t text_block = 256;
  uint32_t cache_tokens = 1'000'000;
  std::string api_key_file;
  std::string authorities;
  Duration load_interval = std::chrono::milliseconds(100);
  Duration silence = std::chrono::minutes(5);
  uint64_t max_answer = 16 << 20;
  uint32_t threads = 2;
};

// Registers engines.* and their check. `config` must outlive `schema`.
void Register(config::Schema& schema, EngineConfig& config);

// The worker is an engine: its address is a URL, or they are those of a name with a scheme.
bool IsEngine(const std::string& worker);

// Only events need the engines' own tokens: what was sent is remembered as well by its text.
bool AsksForTokens(const EngineConfig& config, bool follows_events);

EngineLinkOptions LinkOptions(const EngineConfig& config);
// `cache_bytes`: for tokens that engines made.
PromptReader::Options ReaderOptions(const EngineConfig& config, bool follows_events,
                                    size_t cache_bytes);
// How much an engine without events is believed to hold, in blocks of the keys that there are.
uint32_t SentBlocks(const EngineConfig& config, bool has_model, bool follows_events);

}  // namespace cairn::router
