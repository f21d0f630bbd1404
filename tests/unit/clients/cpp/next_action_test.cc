#include "cairn/client/next_action.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <string>

namespace cairn::client {
namespace {

TEST(NextActionTest, EveryCodeHasItsRowInTheDocument) {
  std::ifstream in("docs/errors.md");
  ASSERT_TRUE(in) << "run from the repository root";
  std::map<std::string, std::string> rows;
  // | `UNAVAILABLE` (14) | `retry_later` | ...
  const std::regex row(R"(\| `([A-Z_]+)` \((\d+)\) \| `([a-z_]+)` \|.*)");
  std::string line;
  while (std::getline(in, line)) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    const auto code = static_cast<StatusCode>(std::stoi(match[2]));
    EXPECT_EQ(absl::StatusCodeToString(code), match[1].str());
    EXPECT_EQ(Name(NextAction(code)), match[3].str()) << match[1];
    EXPECT_TRUE(rows.emplace(match[1], match[3]).second) << match[1] << " has two rows";
  }
  EXPECT_EQ(rows.size(), 17u);
}

TEST(NextActionTest, UnknownCodesAreMisses) {
  EXPECT_EQ(NextAction(static_cast<StatusCode>(99)), Action::kTreatAsMiss);
}

}  // namespace
}  // namespace cairn::client
