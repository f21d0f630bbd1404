#pragma once
// SmolLM2's vocabulary from tests/data/tokenizer, as a GGUF file without tensors.

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/model/gguf_builder.h"

namespace cairn::model::testing {

inline std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

inline std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// With the pre-tokenizer `pre` instead of the model's own when given.
inline GgufBuilder SmolLm2Vocabulary(const std::string& pre = "smollm") {
  constexpr size_t kControlTokens = 17;
  std::vector<std::string> tokens = ReadLines("tests/data/tokenizer/smollm2.base.txt");
  const std::vector<std::string> merges = ReadLines("tests/data/tokenizer/smollm2.merges.txt");
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ');
    tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  std::vector<int32_t> types(tokens.size(), 1);
  for (size_t i = 0; i < kControlTokens && i < types.size(); ++i) types[i] = 3;
  GgufBuilder b;
  b.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", pre);
  b.Strings("tokenizer.ggml.tokens", tokens).Ints("tokenizer.ggml.token_type", types);
  b.Strings("tokenizer.ggml.merges", merges);
  b.U32("tokenizer.ggml.bos_token_id", 1).U32("tokenizer.ggml.eos_token_id", 2);
  return b;
}

}  // namespace cairn::model::testing
