#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cairn/common/hash.h"
#include "common/status/matchers.h"
#include "model/gguf.h"
#include "tests/unit/model/smollm2_vocabulary.h"
#include "tests/unit/model/tiny_model.h"

namespace cairn::model {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::ReadText;
using testing::SmolLm2Vocabulary;
using testing::TinyModel;

// A tokenizer and the file that it points into.
struct Loaded {
  std::vector<std::byte> bytes;
  std::unique_ptr<GgufFile> file;
  Result<std::unique_ptr<Tokenizer>> tokenizer = nullptr;

  explicit Loaded(const GgufBuilder& builder) : bytes(builder.Build()) {
    auto parsed = GgufFile::Parse(bytes, "test.gguf");
    EXPECT_OK(parsed);
    file = std::move(*parsed);
    tokenizer = Tokenizer::FromGguf(*file);
  }
};

Status FromTiny(const TinyModel& tiny) { return Loaded(tiny.Builder()).tokenizer.status(); }

class SmolLm2TokenizerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { loaded_ = std::make_unique<Loaded>(SmolLm2Vocabulary()); }
  static void TearDownTestSuite() { loaded_.reset(); }
  void SetUp() override { ASSERT_OK(loaded_->tokenizer); }

  const Tokenizer& tokenizer() const { return **loaded_->tokenizer; }

  static std::unique_ptr<Loaded> loaded_;
};
std::unique_ptr<Loaded> SmolLm2TokenizerTest::loaded_;

nlohmann::json ReadJson(const std::string& name) {
  return nlohmann::json::parse(ReadText("tests/data/tokenizer/" + name));
}

TEST_F(SmolLm2TokenizerTest, EncodesTheReferenceTexts) {
  const nlohmann::json reference = ReadJson("reference.json");
  ASSERT_GE(reference.at("encode").size(), 13u);
  for (const auto& entry : reference.at("encode")) {
    const auto ids = tokenizer().Encode(entry.at("text").get<std::string>(), true);
    ASSERT_OK(ids);
    EXPECT_EQ(*ids, entry.at("ids").get<std::vector<TokenId>>()) << entry.at("name");
    EXPECT_EQ(tokenizer().Decode(*ids, true), entry.at("text").get<std::string>());
  }
}

TEST_F(SmolLm2TokenizerTest, StepsOfAnyLengthMakeTheSameTokens) {
  std::vector<std::string> texts = {"", " ", "<|im_start|>user\n<|im_end|>", "\u00e9\u4e2d a"};
  const nlohmann::json reference = ReadJson("reference.json");
  for (const auto& entry : reference.at("encode")) {
    texts.push_back(entry.at("text").get<std::string>());
  }
  // One long word, and many spaces: nothing at which a text could be cut.
  std::string word = "x";
  for (uint32_t i = 1; i < 5000; ++i)
    word += static_cast<char>('a' + (i * i * 2654435761u >> 13) % 26);
  texts.push_back(word);
  texts.push_back("a " + word + " b<|im_end|>" + word + "7");
  texts.push_back(std::string(3000, ' ') + "end");
  for (const std::string& text : texts) {
    for (const bool special : {false, true}) {
      const auto whole = tokenizer().Encode(text, special);
      ASSERT_OK(whole);
      for (const size_t bytes : {1, 7, 100, 4096}) {
        TextEncoding steps(tokenizer(), text, special);
        size_t count = 0;
        for (;; ++count) {
          const auto done = steps.Step(bytes);
          ASSERT_OK(done);
          if (*done) break;
          ASSERT_LT(count, 100 * text.size() + 100);
        }
        EXPECT_EQ(steps.ids(), *whole) << text.substr(0, 40) << " in steps of " << bytes;
        EXPECT_EQ(steps.left(), 0u);
      }
    }
  }
}

TEST_F(SmolLm2TokenizerTest, AStepOfALongWordIsShort) {
  const std::string word(1 << 20, 'q');
  TextEncoding steps(tokenizer(), word, false);
  size_t count = 0;
  for (bool done = false; !done; ++count) {
    auto step = steps.Step(16 << 10);
    ASSERT_OK(step);
    done = *step;
    // Its size is known before much of it is there.
    EXPECT_LE(steps.memory(), 40 * word.size());
  }
  EXPECT_GE(count, word.size() / (16 << 10));
}

TEST_F(SmolLm2TokenizerTest, StepsNameTheByteThatIsWrong) {
  for (const std::string& text : {std::string("a\xff"), std::string(500, 'a') + "\xc3",
                                  std::string(200, 'a') + "\xe4\xb8z"}) {
    const Status whole = tokenizer().Encode(text, false).status();
    EXPECT_THAT(whole, StatusIs(StatusCode::kInvalidArgument, HasSubstr("UTF-8 at byte")));
    TextEncoding steps(tokenizer(), text, false);
    Result<bool> done = false;
    while (done.ok() && !*done) done = steps.Step(1);
    EXPECT_EQ(Message(done.status()), Message(whole));
  }
}

TEST_F(SmolLm2TokenizerTest, DecodesTheReferenceIdsAtOnceAndAsAStream) {
  const nlohmann::json reference = ReadJson("reference.json");
  for (const auto& entry : reference.at("decode")) {
    const auto ids = entry.at("ids").get<std::vector<TokenId>>();
    const auto text = entry.at("text").get<std::string>();
    EXPECT_EQ(tokenizer().Decode(ids), text) << entry.at("name");
    StreamDecoder stream(tokenizer());
    std::string streamed;
    for (const TokenId id : ids) streamed += stream.Add(id);
    EXPECT_EQ(streamed + stream.Finish(), text) << entry.at("name");
  }
}

class CorpusTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CorpusTest, IdsEqualTheReferenceTokenizers) {
  const Loaded loaded(SmolLm2Vocabulary(GetParam()));
  ASSERT_OK(loaded.tokenizer);
  const std::string text = ReadText("tests/data/tokenizer/corpus.txt");
  ASSERT_FALSE(text.empty());
  const auto ids = (*loaded.tokenizer)->Encode(text, true);
  ASSERT_OK(ids);
  const auto expected = ReadJson("corpus.json").at(GetParam());
  EXPECT_EQ(ids->size(), expected.at("count").get<size_t>());
  const auto* raw = reinterpret_cast<const char*>(ids->data());
  EXPECT_EQ(Sha256::Of({raw, ids->size() * sizeof(TokenId)}).Hex(),
            expected.at("sha256").get<std::string>());
}

INSTANTIATE_TEST_SUITE_P(PreTokenizers, CorpusTest,
                         ::testing::Values("smollm", "gpt-2", "llama-bpe"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_F(SmolLm2TokenizerTest, ControlTokensInTextCountOnlyWhenAsked) {
  const std::string text = "a<|im_end|>b";
  const auto parsed = tokenizer().Encode(text, true);
  const auto plain = tokenizer().Encode(text, false);
  ASSERT_OK(parsed);
  ASSERT_OK(plain);
  EXPECT_EQ(parsed->size(), 3u);
  EXPECT_EQ((*parsed)[1], 2);
  for (const TokenId id : *plain) EXPECT_FALSE(tokenizer().IsControl(id)) << id;
  EXPECT_EQ(tokenizer().Decode(*plain), text);
  EXPECT_EQ(tokenizer().Decode(*parsed), "ab");
  EXPECT_EQ(tokenizer().Decode(*parsed, true), text);
}

TEST_F(SmolLm2TokenizerTest, PromptPiecesKeepTheirOwnRule) {
  const std::vector<PromptPiece> pieces = {{"<|im_start|>", true}, {"user\n<|im_end|>", false}};
  const auto ids = tokenizer().EncodePrompt(pieces);
  ASSERT_OK(ids);
  EXPECT_EQ(ids->front(), 1);
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 2), 0);
}

TEST_F(SmolLm2TokenizerTest, NamesTheByteThatIsNotUtf8) {
  EXPECT_THAT(tokenizer().Encode("abc\xff", true),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("byte 3"), HasSubstr("ff"))));
  for (const char* bad : {"\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"}) {
    EXPECT_THAT(tokenizer().Encode(bad, true),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("byte 0")));
  }
}

TEST_F(SmolLm2TokenizerTest, LeavesOutBytesThatHaveNoToken) {
  const auto ids = tokenizer().Encode(
      "a\x04"
      "b",
      false);
  ASSERT_OK(ids);
  EXPECT_EQ(tokenizer().Decode(*ids), "ab");
}

TEST_F(SmolLm2TokenizerTest, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer().vocab_size(), 49152);
  EXPECT_EQ(tokenizer().bos(), 1);
  EXPECT_EQ(tokenizer().eos(), 2);
  EXPECT_FALSE(tokenizer().add_bos());
  EXPECT_TRUE(tokenizer().IsEndOfGeneration(2));
  EXPECT_FALSE(tokenizer().IsEndOfGeneration(1));
  EXPECT_EQ(tokenizer().Find("<|im_start|>"), 1);
  EXPECT_EQ(tokenizer().Find("no such token"), std::nullopt);
  EXPECT_TRUE(tokenizer().IsControl(16));
  EXPECT_FALSE(tokenizer().IsControl(17));
  EXPECT_FALSE(tokenizer().IsControl(-1));
  EXPECT_EQ(tokenizer().Decode(std::vector<TokenId>{-1, 49152, 19556}), "Hello");
}

// Merging one long piece must not take quadratic time, nor the patterns run out of stack.
TEST_F(SmolLm2TokenizerTest, LongRunsOfOneKind) {
  for (const std::string unit : {"a", " ", "=", "7", "\n", "ab", "é", " \n"}) {
    std::string text;
    while (text.size() < 1 << 20) text += unit;
    const auto ids = tokenizer().Encode(text, true);
    ASSERT_OK(ids) << unit;
    EXPECT_EQ(tokenizer().Decode(*ids), text) << unit;
  }
}

TEST_F(SmolLm2TokenizerTest, StreamHoldsBackIncompleteCharacters) {
  // One token per byte of U+1F642.
  const std::string smile = "\xf0\x9f\x99\x82";
  std::vector<TokenId> bytes;
  for (TokenId id = 17; id < 252; ++id) {
    if (tokenizer().TokenBytes(id) == "\x99") bytes.push_back(id);
  }
  ASSERT_EQ(bytes.size(), 1u);
  const auto token_of = [&](char byte) {
    for (TokenId id = 17; id < 252; ++id) {
      if (tokenizer().TokenBytes(id) == std::string(1, byte)) return id;
    }
    return TokenId{-1};
  };
  StreamDecoder stream(tokenizer());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(stream.Add(token_of(smile[i])), "") << i;
  EXPECT_EQ(stream.Add(token_of(smile[3])), smile);
  EXPECT_EQ(stream.Finish(), "");

  // Cut short by another character: one replacement, nothing swallowed.
  EXPECT_EQ(stream.Add(token_of(smile[0])), "");
  EXPECT_EQ(stream.Add(token_of('x')), "\xef\xbf\xbdx");
  EXPECT_EQ(stream.Add(token_of('\x99')), "\xef\xbf\xbd") << "a continuation byte alone";
  EXPECT_EQ(stream.Add(token_of(smile[0])), "");
  EXPECT_EQ(stream.Finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TokenizerTest, NamesWhatIsNotSupported) {
  TinyModel tiny;
  tiny.tokenizer_model = "llama";
  EXPECT_THAT(FromTiny(tiny),
              StatusIs(StatusCode::kUnimplemented, AllOf(HasSubstr("'llama'"), HasSubstr("gpt2"))));
  tiny = TinyModel();
  tiny.pre = "klingon";
  EXPECT_THAT(FromTiny(tiny), StatusIs(StatusCode::kUnimplemented,
                                       AllOf(HasSubstr("'klingon'"), HasSubstr("smollm"))));
  tiny = TinyModel();
  tiny.token_types[0] = 6;
  EXPECT_THAT(FromTiny(tiny), StatusIs(StatusCode::kUnimplemented, HasSubstr("[0] is 6")));
}

TEST(TokenizerTest, RefusesInconsistentVocabularies) {
  TinyModel tiny;
  tiny.token_types.pop_back();
  EXPECT_THAT(FromTiny(tiny),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("5 entries, expected 6")));
  tiny = TinyModel();
  tiny.tokens[1] = "a";
  EXPECT_THAT(FromTiny(tiny), StatusIs(StatusCode::kInvalidArgument, HasSubstr("same token")));
  for (const char* merge : {"ab", "a b a", "a ", "b a", "x y"}) {
    tiny = TinyModel();
    tiny.merges = {merge};
    EXPECT_THAT(FromTiny(tiny), StatusIs(StatusCode::kInvalidArgument, HasSubstr("merges[0]")))
        << merge;
  }
  tiny = TinyModel();
  tiny.token_types[3] = 3;
  EXPECT_THAT(FromTiny(tiny), StatusIs(StatusCode::kInvalidArgument, HasSubstr("control token 3")));
  tiny = TinyModel();
  tiny.extra = [](GgufBuilder& b) { b.U32("tokenizer.ggml.eot_token_id", 6); };
  EXPECT_THAT(FromTiny(tiny),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("is 6, expected 0 to 5")));
  tiny = TinyModel();
  tiny.extra = [](GgufBuilder& b) { b.Bool("tokenizer.ggml.add_bos_token", true); };
  EXPECT_THAT(FromTiny(tiny),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("bos_token_id is missing")));
}

TEST(TokenizerTest, AddsTheBeginOfTextTokenOnce) {
  TinyModel tiny;
  tiny.extra = [](GgufBuilder& b) {
    b.Bool("tokenizer.ggml.add_bos_token", true).U32("tokenizer.ggml.bos_token_id", 4);
  };
  const Loaded loaded(tiny.Builder());
  ASSERT_OK(loaded.tokenizer);
  const Tokenizer& tokenizer = **loaded.tokenizer;
  EXPECT_THAT(*tokenizer.EncodePrompt(std::vector<PromptPiece>{{"ab", false}}), ElementsAre(4, 3));
  EXPECT_THAT(*tokenizer.EncodePrompt(std::vector<PromptPiece>{{"<|im_start|>ab", true}}),
              ElementsAre(4, 3));
  EXPECT_THAT(*tokenizer.Encode("ab", true), ElementsAre(3));
}

TEST(TokenizerTest, UserDefinedTokensAreAlwaysRecognisedLongestFirst) {
  TinyModel tiny;
  tiny.tokens = {"a", "b", "Ġ", "ab", "<x", "<x>"};
  tiny.token_types = {1, 1, 1, 1, 4, 4};
  const Loaded loaded(tiny.Builder());
  ASSERT_OK(loaded.tokenizer);
  EXPECT_THAT(*(*loaded.tokenizer)->Encode("a<x>b<x", false), ElementsAre(0, 5, 1, 4));
}

}  // namespace
}  // namespace cairn::model
