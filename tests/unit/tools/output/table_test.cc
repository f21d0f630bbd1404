#include "tools/cairn/output/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace cairn::cli {
namespace {

TEST(TableTest, AlignsColumnsInABox) {
  Table table({{"name", Align::kLeft}, {"n", Align::kRight}});
  table.AddRow({"a", "1"});
  table.AddRule();
  table.AddRow({"bcdef", "100"});
  const Terminal ascii{.unicode = false};
  EXPECT_EQ(table.Render(ascii),
            "+-------+-----+\n"
            "| name  |   n |\n"
            "+-------+-----+\n"
            "| a     |   1 |\n"
            "+-------+-----+\n"
            "| bcdef | 100 |\n"
            "+-------+-----+\n");
}

TEST(TableTest, ColorsAndUnicodeDoNotBreakAlignment) {
  Table table({{"n", Align::kLeft}});
  table.AddRow({Cell("▏", Style::kGreen)});
  table.AddRow({Cell("██", Style::kRed)});
  table.AddRow({Cell("ab")});
  const Terminal color{.colors = true, .unicode = true};
  std::istringstream lines(table.Render(color));
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    EXPECT_EQ(DisplayWidth(line), 6) << line;
    ++count;
  }
  EXPECT_EQ(count, 7);
  EXPECT_NE(table.Render(color).find("\x1b[32m▏\x1b[0m"), std::string::npos);
}

TEST(TableTest, MissingCellsAreEmpty) {
  Table table({{"a", Align::kLeft}, {"b", Align::kLeft}});
  table.AddRow({"x"});
  EXPECT_NE(table.Render({.unicode = false}).find("| x |   |"), std::string::npos);
}

TEST(TerminalTest, WithoutColorsPaintIsPlain) {
  EXPECT_EQ(Terminal{}.Paint("x", Style::kRed), "x");
  EXPECT_EQ((Terminal{.colors = true}).Paint("x", Style::kRed), "\x1b[31mx\x1b[0m");
}

}  // namespace
}  // namespace cairn::cli
