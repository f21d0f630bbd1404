#include "services/router/http/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace cairn::router {
namespace {

using ::testing::HasSubstr;

std::string Line(const std::string& tenant, const std::string& key) {
  return tenant + " " + Sha256::Of(key).Hex() + "\n";
}

TEST(ApiKeysTest, FindsTheTenantOfAKey) {
  const auto keys = ParseApiKeys("# who may call\n\n" + Line("chat", "key-1") + "  " +
                                 Line("batch", "key-2") + Line("chat", "key-3"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_NE(FindTenant(*keys, "key-1"), nullptr);
  EXPECT_EQ(*FindTenant(*keys, "key-1"), "chat");
  EXPECT_EQ(*FindTenant(*keys, "key-2"), "batch");
  EXPECT_EQ(*FindTenant(*keys, "key-3"), "chat");
  EXPECT_EQ(FindTenant(*keys, "key-4"), nullptr);
  EXPECT_EQ(FindTenant(*keys, Sha256::Of("key-1").Hex()), nullptr);
}

TEST(ApiKeysTest, NamesTheLineThatIsWrongAndShowsNoKey) {
  for (const std::string& line : std::vector<std::string>{
           "chat\n", "chat secret-key\n", "chat " + std::string(64, 'g') + "\n",
           Line("chat", "a").substr(0, 68) + " more\n", std::string(129, 'x') + Line("", "a"),
           "ch\xff" + Line("", "a"), Line("other", "first")}) {
    const auto keys = ParseApiKeys(Line("chat", "first") + line);
    ASSERT_EQ(keys.status().code(), StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(Message(keys.status()), HasSubstr("line 2"));
    EXPECT_EQ(Message(keys.status()).find("secret"), std::string::npos);
  }
}

class ApiKeyFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  void WaitForTheNextLook() { clock_.Advance(config::FollowedFile::kLookEvery); }

  FakeClock clock_;
  const std::string path_ = ::testing::TempDir() + "cairn_api_keys." + std::to_string(getpid());
};

TEST_F(ApiKeyFileTest, FollowsTheFile) {
  Write(Line("chat", "one"));
  auto file = ApiKeyFile::Open(path_, "http.api_keys", &clock_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->TenantOf("one"), "chat");
  Write(Line("chat", "one") + Line("batch", "two"));
  EXPECT_EQ((*file)->TenantOf("two"), std::nullopt);  // It does not look for each request.
  WaitForTheNextLook();
  EXPECT_EQ((*file)->TenantOf("two"), "batch");
  Write("nonsense\n");
  WaitForTheNextLook();
  EXPECT_EQ((*file)->TenantOf("two"), "batch");
  Write("");
  WaitForTheNextLook();
  EXPECT_EQ((*file)->TenantOf("two"), std::nullopt);
}

// Whoever takes a key away and makes a typing error has taken nothing away.
TEST_F(ApiKeyFileTest, AFileThatCannotBeUsedIsStaleUntilItCan) {
  Write(Line("chat", "one"));
  auto file = ApiKeyFile::Open(path_, "http.api_keys", &clock_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE((*file)->stale());
  Write("nonsense\n");
  EXPECT_FALSE((*file)->stale());
  WaitForTheNextLook();
  EXPECT_TRUE((*file)->stale());  // Nobody has called.
  EXPECT_EQ((*file)->TenantOf("one"), "chat");
  std::filesystem::remove(path_);
  WaitForTheNextLook();
  EXPECT_TRUE((*file)->stale());
  WaitForTheNextLook();
  EXPECT_TRUE((*file)->stale());
  Write(Line("batch", "two"));
  WaitForTheNextLook();
  EXPECT_FALSE((*file)->stale());
  EXPECT_EQ((*file)->TenantOf("one"), std::nullopt);
  EXPECT_EQ((*file)->TenantOf("two"), "batch");
}

// Its time and size are those of before.
TEST_F(ApiKeyFileTest, AFileThatIsReadableAgainIsReadAgain) {
  Write(Line("chat", "one"));
  auto file = ApiKeyFile::Open(path_, "http.api_keys", &clock_);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string aside = path_ + ".aside";
  std::filesystem::rename(path_, aside);
  WaitForTheNextLook();
  EXPECT_TRUE((*file)->stale());
  std::filesystem::rename(aside, path_);
  WaitForTheNextLook();
  EXPECT_FALSE((*file)->stale());
}

TEST_F(ApiKeyFileTest, NamesTheSetting) {
  for (const std::string& text :
       {std::string("nonsense\n"), std::string(kMaxKeyFileBytes + 1, '\n')}) {
    Write(text);
    EXPECT_THAT(Message(ApiKeyFile::Open(path_, "http.api_keys", &clock_).status()),
                HasSubstr("http.api_keys"));
  }
  EXPECT_THAT(Message(ApiKeyFile::Open("/nowhere/keys", "http.api_keys", &clock_).status()),
              HasSubstr("/nowhere/keys"));
}

}  // namespace
}  // namespace cairn::router
