#include "cairn/client/next_action.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

namespace cairn::client {
namespace {

// The text between the n-th pair of backquotes.
std::string Quoted(const std::string& line, size_t n) {
  size_t begin = line.find('`');
  for (size_t skip = 2 * n; skip > 0 && begin != std::string::npos; --skip) {
    begin = line.find('`', begin + 1);
  }
  if (begin == std::string::npos) return "";
  return line.substr(begin + 1, line.find('`', begin + 1) - begin - 1);
}

TEST(NextActionTest, EveryCodeHasItsRowInTheDocument) {
  std::ifstream in("docs/program/errors.md");
  ASSERT_TRUE(in) << "run from the repository root";
  std::map<std::string, std::string> rows;
  std::string line;
  while (std::getline(in, line)) {
    // | `UNAVAILABLE` (14) | `retry_later` | ...
    if (!line.starts_with("| `")) continue;
    const std::string name = Quoted(line, 0);
    const std::string action = Quoted(line, 1);
    const auto code = static_cast<StatusCode>(std::stoi(line.substr(line.find('(') + 1)));
    EXPECT_EQ(absl::StatusCodeToString(code), name);
    EXPECT_EQ(Name(NextAction(code)), action) << name;
    EXPECT_TRUE(rows.emplace(name, action).second) << name << " has two rows";
  }
  EXPECT_EQ(rows.size(), 17u);
}

TEST(NextActionTest, UnknownCodesAreMisses) {
  EXPECT_EQ(NextAction(static_cast<StatusCode>(99)), Action::kTreatAsMiss);
}

}  // namespace
}  // namespace cairn::client
