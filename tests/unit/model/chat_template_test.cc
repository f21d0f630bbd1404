#include "model/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/status/matchers.h"
#include "tests/unit/model/smollm2_vocabulary.h"

namespace cairn::model {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kPlainChatMl[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}";

// As SmolLM2's file has it, with line breaks inside of the strings.
constexpr char kSmolLm2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(ChatTemplateTest, AddsTheDefaultSystemTurnAsTheReferencePrompt) {
  auto chat = ChatTemplate::FromJinja(kSmolLm2);
  ASSERT_OK(chat);
  EXPECT_EQ((*chat)->name(), "chatml-smollm2");
  const std::vector<ChatMessage> messages = {
      {"user", "Write a Python function that returns the square of x."}};
  auto pieces = (*chat)->Render(messages, true);
  ASSERT_OK(pieces);
  const auto reference =
      nlohmann::json::parse(testing::ReadText("tests/data/tokenizer/reference.json"));
  std::string expected;
  for (const auto& entry : reference.at("encode")) {
    if (entry.at("name") == "chat") expected = entry.at("text");
  }
  EXPECT_EQ(ToText(*pieces), expected);
}

TEST(ChatTemplateTest, KeepsAGivenSystemTurn) {
  auto chat = ChatTemplate::FromJinja(kSmolLm2);
  ASSERT_OK(chat);
  const std::vector<ChatMessage> messages = {
      {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello."}};
  auto pieces = (*chat)->Render(messages, false);
  ASSERT_OK(pieces);
  EXPECT_EQ(ToText(*pieces),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n");
}

TEST(ChatTemplateTest, OnlyItsOwnMarkersAreSpecial) {
  auto chat = ChatTemplate::FromJinja(kPlainChatMl);
  ASSERT_OK(chat);
  EXPECT_EQ((*chat)->default_system(), "");
  const std::vector<ChatMessage> messages = {{"user", "<|im_end|>"}};
  auto pieces = (*chat)->Render(messages, false);
  ASSERT_OK(pieces);
  EXPECT_EQ(*pieces, (std::vector<PromptPiece>{{"<|im_start|>", true},
                                               {"user\n<|im_end|>", false},
                                               {"<|im_end|>", true},
                                               {"\n", false}}));
}

// Jinja drops one line break at the end, takes CRLF for one, and editors add a mark in front.
TEST(ChatTemplateTest, OneTemplateInEverySpelling) {
  std::string crlf;
  for (const char c : std::string(kSmolLm2)) crlf += c == '\n' ? "\r\n" : std::string(1, c);
  for (const std::string& program : {std::string(kSmolLm2) + "\n", std::string(kSmolLm2) + "\r\n",
                                     crlf, "\xef\xbb\xbf" + std::string(kSmolLm2)}) {
    auto chat = ChatTemplate::FromJinja(program);
    ASSERT_OK(chat);
    EXPECT_EQ((*chat)->name(), "chatml-smollm2");
  }
  // A second line break is output.
  EXPECT_FALSE(ChatTemplate::FromJinja(std::string(kSmolLm2) + "\n\n").ok());
}

TEST(ChatTemplateTest, UnknownTemplatesAreErrors) {
  std::string changed = kSmolLm2;
  changed.replace(changed.find("SmolLM"), 6, "Smolly");
  for (const std::string& program : {changed, std::string(), std::string("{{ bos_token }}")}) {
    EXPECT_THAT(
        ChatTemplate::FromJinja(program),
        StatusIs(StatusCode::kUnimplemented,
                 AllOf(HasSubstr("SHA-256"), HasSubstr("chatml-smollm2"), HasSubstr("--raw"))));
  }
}

TEST(ChatTemplateTest, RefusesBadMessages) {
  auto chat = ChatTemplate::FromJinja(kSmolLm2);
  ASSERT_OK(chat);
  EXPECT_THAT((*chat)->Render({}, true),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("at least one")));
  const std::vector<ChatMessage> messages = {{"user", "a"}, {"<|im_end|>", "b"}};
  EXPECT_THAT((*chat)->Render(messages, true),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("messages[1].role"), HasSubstr("'<|im_end|>'"))));
}

}  // namespace
}  // namespace cairn::model
