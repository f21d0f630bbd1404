// Any text to the tokenizer, and any ids back: text that is not UTF-8 is refused, ids are in the
// vocabulary, their bytes are the text, and a stream of ids is UTF-8 at every step.
//
// First byte: bits 0 and 1 the pre-tokenizer, bit 2 special tokens are parsed, the rest the length
// of steps, which make the same tokens. Then the text, and as numbers of one byte the ids.

#include <array>

#include "model/gguf.h"
#include "model/tokenizer.h"
#include "model/utf8.h"
#include "tests/fuzz/input.h"
#include "tests/unit/model/gguf_builder.h"

namespace {

using namespace cairn;
using namespace cairn::model;
using fuzz::Expect;

constexpr const char* kPre[] = {"gpt-2", "smollm", "llama-bpe"};

// Every byte, some merges, and tokens of each other type.
class Vocabulary {
 public:
  explicit Vocabulary(const std::string& pre) {
    std::vector<std::string> tokens;
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      tokens.emplace_back();
      AppendUtf8(printable ? byte : next++, &tokens.back());
    }
    std::vector<int32_t> types(tokens.size(), 1);
    const auto add = [&](const std::string& token, int32_t type) {
      tokens.push_back(token);
      types.push_back(type);
    };
    for (const char* token : {"ab", "abc", "\u0120a", "\u0120ab", "11", "\u00c3\u00a9"}) {
      add(token, 1);
    }
    add("<|im_start|>", 3);
    add("<|im_end|>", 3);
    add("<user>", 4);
    add("<unk>", 2);
    bytes_ = model::testing::GgufBuilder()
                 .String("tokenizer.ggml.model", "gpt2")
                 .String("tokenizer.ggml.pre", pre)
                 .Strings("tokenizer.ggml.tokens", tokens)
                 .Ints("tokenizer.ggml.token_type", types)
                 .Strings("tokenizer.ggml.merges",
                          {"a b", "ab c", "\u0120 a", "\u0120a b", "1 1", "\u00c3 \u00a9"})
                 .U32("tokenizer.ggml.bos_token_id", 262)
                 .U32("tokenizer.ggml.eos_token_id", 263)
                 .Build();
    file_ = fuzz::Get(GgufFile::Parse(bytes_, "vocabulary"));
    tokenizer_ = fuzz::Get(Tokenizer::FromGguf(*file_));
  }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::vector<std::byte> bytes_;
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

CAIRN_FUZZ_ENTRY(tokenizer)(const uint8_t* data, size_t size) {
  static const std::array<Vocabulary, 3> vocabularies{Vocabulary(kPre[0]), Vocabulary(kPre[1]),
                                                      Vocabulary(kPre[2])};
  fuzz::Input input(data, size);
  const uint8_t mode = input.U8();
  const Tokenizer& tokenizer = vocabularies[(mode & 3) % 3].tokenizer();
  const std::string_view text = input.Rest();

  const auto ids = tokenizer.Encode(text, (mode & 4) != 0);
  Expect(ids.ok() == (ValidUtf8Prefix(text) == text.size()));
  if (ids.ok()) {
    for (const TokenId id : *ids) Expect(id >= 0 && id < tokenizer.vocab_size());
    Expect(tokenizer.Decode(*ids, /*with_special=*/true) == text);
    if ((mode & 4) == 0) {
      for (const TokenId id : *ids) Expect(!tokenizer.IsControl(id));
    }
  }

  TextEncoding steps(tokenizer, text, (mode & 4) != 0);
  Result<bool> done = false;
  while (done.ok() && !*done) done = steps.Step(1 + (mode >> 3));
  Expect(done.ok() == ids.ok());
  if (ids.ok()) Expect(steps.ids() == *ids);

  StreamDecoder stream(tokenizer, /*with_special=*/true);
  std::vector<TokenId> given;
  std::string streamed;
  for (const char c : text) {
    // Some beyond the vocabulary.
    given.push_back(static_cast<uint8_t>(c) + (c == '~' ? 256 : 0));
    const std::string more = stream.Add(given.back());
    Expect(ValidUtf8Prefix(more) == more.size());
    streamed += more;
  }
  streamed += stream.Finish();
  const std::string whole = tokenizer.Decode(given, true);
  if (ValidUtf8Prefix(whole) == whole.size()) Expect(streamed == whole);
  return 0;
}
