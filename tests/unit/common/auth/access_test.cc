#include "common/auth/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/status/matchers.h"

namespace cairn::auth {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const Identity kEngine{.names = {"cn:engine"}};

std::string Rule(const std::string& role, const std::string& tenant) {
  return "rules:\n  - identity: cn:engine\n    role: " + role + "\n    tenants: [" + tenant + "]\n";
}

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() { Write(Rule("writer", "a")); }
  ~AccessTest() override { std::filesystem::remove(path_); }

  void Write(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }
  // A file system may not tell two times of one moment apart.
  void Replace(const std::string& text) {
    Write(text);
    std::filesystem::last_write_time(
        path_, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(++writes_));
    LookLater();
  }
  void LookLater() {
    clock_.Advance(config::FollowedFile::kLookEvery);
    access_->Look();
  }
  void Open() {
    auto access = Access::Open(path_, "auth.policy", &clock_);
    ASSERT_OK(access);
    access_ = *std::move(access);
  }
  bool May(Role role, std::string_view tenant) {
    return access_->Know(kEngine)->rights.May(role, tenant);
  }

  FakeClock clock_;
  std::string path_ = ::testing::TempDir() + "/policy-" + std::to_string(getpid()) + ".yaml";
  int writes_ = 0;
  std::unique_ptr<Access> access_;
};

TEST_F(AccessTest, AChangeIsTakenOverAtTheNextLook) {
  Open();
  EXPECT_TRUE(May(Role::kWriter, "a"));
  const uint64_t before = access_->version();
  LookLater();
  EXPECT_EQ(access_->version(), before) << "the file is as it was";
  Replace(Rule("reader", "b"));
  EXPECT_NE(access_->version(), before);
  EXPECT_FALSE(May(Role::kReader, "a"));
  EXPECT_TRUE(May(Role::kReader, "b"));
  EXPECT_EQ(access_->counts().loads, 2u);
}

TEST_F(AccessTest, ACertificateIsReadOnceUntilThePolicyChanges) {
  Open();
  int reads = 0;
  const auto know = [&](std::string_view certificate) {
    return access_->KnowCertificate(certificate, [&] {
      ++reads;
      return certificate == "engine's" ? kEngine : Identity();
    });
  };
  EXPECT_TRUE(know("engine's")->rights.May(Role::kWriter, "a"));
  EXPECT_EQ(know("engine's"), access_->Know(kEngine));
  EXPECT_EQ(reads, 1);
  EXPECT_FALSE(know("another one")->identity.known());
  EXPECT_EQ(reads, 2);
  Replace(Rule("reader", "b"));
  EXPECT_FALSE(know("engine's")->rights.May(Role::kWriter, "a"));
  EXPECT_TRUE(know("engine's")->rights.May(Role::kReader, "b"));
  EXPECT_EQ(reads, 3);
}

TEST_F(AccessTest, ItLooksTwiceASecondAtMost) {
  Open();
  Write(Rule("reader", "a") + "\n\n");
  clock_.Advance(std::chrono::milliseconds(499));
  access_->Look();
  EXPECT_TRUE(May(Role::kWriter, "a"));
  clock_.Advance(std::chrono::milliseconds(1));
  access_->Look();
  EXPECT_FALSE(May(Role::kWriter, "a"));
}

TEST_F(AccessTest, AFileThatIsWrongIsCountedAndChangesNothing) {
  Open();
  const uint64_t before = access_->version();
  for (const char* text : {"", "rules: [",
                           "rules:\n  - {identity: cn:engine, role: king, "
                           "tenants: [a]}\n"}) {
    Replace(text);
    EXPECT_TRUE(May(Role::kWriter, "a")) << text;
    EXPECT_TRUE(access_->counts().stale) << text;
  }
  EXPECT_EQ(access_->counts().failures, 3u);
  LookLater();
  EXPECT_EQ(access_->counts().failures, 3u) << "it is counted once";
  EXPECT_EQ(access_->version(), before);
  std::filesystem::remove(path_);
  LookLater();
  EXPECT_TRUE(May(Role::kWriter, "a")) << "a file that is gone takes nothing away";
  EXPECT_EQ(access_->counts().failures, 4u);
  Replace(Rule("reader", "a"));
  EXPECT_FALSE(access_->counts().stale);
  EXPECT_FALSE(May(Role::kWriter, "a"));
}

// As rsync, cp -p and images do it.
TEST_F(AccessTest, AnotherFileOfTheSameTimeAndSizeIsAChange) {
  const auto time = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(path_, time);
  Open();
  const std::string other = path_ + ".new";
  std::ofstream(other) << Rule("reader", "a");
  ASSERT_EQ(std::filesystem::file_size(other), std::filesystem::file_size(path_));
  std::filesystem::last_write_time(other, time);
  std::filesystem::rename(other, path_);
  LookLater();
  EXPECT_FALSE(May(Role::kWriter, "a"));
}

TEST_F(AccessTest, MarksAndLineBreaksOfEditorsAreNoPartOfIt) {
  std::string text = "\xEF\xBB\xBF";
  for (const char c : Rule("writer", "a")) text += c == '\n' ? "\r\n" : std::string(1, c);
  Write(text);
  Open();
  EXPECT_TRUE(May(Role::kWriter, "a"));
}

TEST_F(AccessTest, AWrongFileAtTheStartIsAnErrorThatNamesTheSetting) {
  Write("rules: 7\n");
  const auto wrong = Access::Open(path_, "auth.policy", &clock_);
  EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(wrong.status()), StartsWith("auth.policy: "));
  EXPECT_THAT(Message(wrong.status()), HasSubstr(path_ + " line 1"));
  const auto none = Access::Open(path_ + ".none", "auth.policy", &clock_);
  EXPECT_EQ(none.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(none.status()), HasSubstr("auth.policy"));
}

TEST_F(AccessTest, StrangersCannotMakeItGrow) {
  Open();
  for (int i = 0; i < 20'000; ++i) {
    (void)access_->Know({.names = {"cn:stranger" + std::to_string(i)}});
  }
  EXPECT_TRUE(May(Role::kWriter, "a"));
}

TEST(OperatorTest, AnOperatorMayDoAllButSpeakAsAMember) {
  const auto root = Access::KnowOperator(0);
  EXPECT_EQ(root->identity.Describe(), "uid:0");
  EXPECT_TRUE(root->rights.MayForAll(Role::kAdmin));
  EXPECT_TRUE(root->rights.MayForAll(Role::kWriter));
  EXPECT_FALSE(root->rights.May(Role::kPeer));
}

}  // namespace
}  // namespace cairn::auth
