#include "tools/cairn/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/status/matchers.h"

namespace cairn::cli {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ReportFileTest : public ::testing::Test {
 protected:
  ReportFileTest() {
    char path[] = "/tmp/cairn-report-XXXXXX";
    directory_ = mkdtemp(path);
  }
  ~ReportFileTest() override { std::filesystem::remove_all(directory_); }

  std::string File(const std::string& name, const std::string& text) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  std::string directory_;
};

TEST_F(ReportFileTest, NamesWhatIsMissingAndWhy) {
  const std::string text =
      ReportText("cairn 1 (abc)", "now",
                 {{"one: log", std::string("first\nsecond")},
                  {"two: metrics", Status(StatusCode::kUnavailable, "nobody listens")}});
  EXPECT_THAT(text, StartsWith("Report of cairn 1 (abc), now\n"));
  EXPECT_THAT(text, HasSubstr("==== one: log ====\nfirst\nsecond\n"));
  EXPECT_THAT(text, HasSubstr("missing: nobody listens"));
  EXPECT_THAT(text, Not(HasSubstr("==== two")));
  EXPECT_THAT(text, HasSubstr("one: log: 2 lines\n")) << "the last one has no end";
}

TEST_F(ReportFileTest, HasNeitherSecretsNorCommandsForTerminals) {
  const std::string text =
      ReportText("", "", {{"log", std::string("password=abc x\x1b[2J\x07\tend\n")}});
  EXPECT_THAT(text, Not(HasSubstr("abc")));
  EXPECT_THAT(text, HasSubstr("password=[left out] x?[2J?\tend\n"));
}

TEST_F(ReportFileTest, AFileOfSettingsIsReadWholeOrNotAtAll) {
  EXPECT_EQ(ReadWhole(File("a", "x: 1\n")).value(), "x: 1\n");
  EXPECT_THAT(ReadWhole(File("b", std::string(kMostOfFile + 1, 'x'))),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("has more than 1.00 MiB")));
  EXPECT_THAT(ReadWhole(directory_ + "/none"),
              StatusIs(StatusCode::kNotFound, HasSubstr("No such file")));
  EXPECT_THAT(ReadWhole(directory_),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("is a folder")));
}

TEST_F(ReportFileTest, TheEndOfALongLogIsReadFromTheBeginningOfALine) {
  const std::string line(99, 'x');
  std::string log = "the first line\n";
  while (log.size() < 3 * kMostOfFile) log += line + "\n";
  log += "the last line\n";
  const std::string read = ReadTail(File("log", log)).value();
  EXPECT_THAT(read, StartsWith("[only the last 1.00 MiB of it]\n" + line + "\n"));
  EXPECT_TRUE(read.ends_with("the last line\n"));
  EXPECT_LE(read.size(), kMostOfFile + 100);
  EXPECT_EQ(ReadTail(File("short", "a\nb")).value(), "a\nb");
}

TEST_F(ReportFileTest, APathThatCannotBeUsedIsKnownBeforeTheReportIs) {
  const std::string path = directory_ + "/report.txt";
  EXPECT_OK(CheckReportPath(path));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THAT(CheckReportPath(directory_ + "/none/report.txt"),
              StatusIs(StatusCode::kInternal, HasSubstr("No such file or directory")));
  File("report.txt", "mine");
  EXPECT_THAT(CheckReportPath(path),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("is there already")));
  EXPECT_EQ(ReadWhole(path).value(), "mine");
}

TEST_F(ReportFileTest, AFileOnlyForItsOwnerThatReplacesNone) {
  const std::string path = directory_ + "/report.txt";
  EXPECT_OK(WriteReport(path, "text"));
  struct stat made {};
  ASSERT_EQ(stat(path.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0600u);
  EXPECT_THAT(WriteReport(path, "other"),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("is there already")));
  EXPECT_EQ(ReadWhole(path).value(), "text");
  EXPECT_THAT(WriteReport("/dev/full/none", "x"),
              StatusIs(StatusCode::kInternal, HasSubstr("--out")));
}

}  // namespace
}  // namespace cairn::cli
