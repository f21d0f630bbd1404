#include "tools/cairn/output/table.h"

#include <algorithm>

namespace cairn::cli {
namespace {

struct Glyphs {
  const char* horizontal;
  const char* vertical;
  const char* top[3];  // Left, between columns, right.
  const char* middle[3];
  const char* bottom[3];
};
constexpr Glyphs kUnicode = {"─", "│", {"╭", "┬", "╮"}, {"├", "┼", "┤"}, {"╰", "┴", "╯"}};
constexpr Glyphs kAscii = {"-", "|", {"+", "+", "+"}, {"+", "+", "+"}, {"+", "+", "+"}};

std::string Padding(int n) { return std::string(static_cast<size_t>(std::max(n, 0)), ' '); }

}  // namespace

void Table::AddRow(std::vector<Cell> cells) {
  cells.resize(columns_.size(), Cell(""));
  rows_.push_back({false, std::move(cells)});
}

void Table::AddRule() { rows_.push_back({true, {}}); }

std::string Table::Render(const Terminal& terminal) const {
  const Glyphs& g = terminal.unicode ? kUnicode : kAscii;
  std::vector<int> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    int width = DisplayWidth(columns_[c].title);
    for (const Row& row : rows_) {
      if (!row.rule) width = std::max(width, DisplayWidth(row.cells[c].text));
    }
    widths.push_back(width);
  }

  std::string out;
  const auto rule = [&](const char* const(&ends)[3]) {
    std::string line = ends[0];
    for (size_t c = 0; c < widths.size(); ++c) {
      if (c > 0) line += ends[1];
      for (int i = 0; i < widths[c] + 2; ++i) line += g.horizontal;
    }
    line += ends[2];
    out += terminal.Paint(line, Style::kDim) + "\n";
  };
  const std::string bar = terminal.Paint(g.vertical, Style::kDim);
  const auto put = [&](size_t c, const std::string& text, Style style) {
    const std::string pad = Padding(widths[c] - DisplayWidth(text));
    const bool right = columns_[c].align == Align::kRight;
    out += (right ? pad : "") + terminal.Paint(text, style) + (right ? "" : pad);
  };

  rule(g.top);
  out += bar;
  for (size_t c = 0; c < columns_.size(); ++c) {
    out += " ";
    put(c, columns_[c].title, Style::kBold);
    out += " " + bar;
  }
  out += "\n";
  rule(g.middle);
  for (const Row& row : rows_) {
    if (row.rule) {
      rule(g.middle);
      continue;
    }
    out += bar;
    for (size_t c = 0; c < columns_.size(); ++c) {
      out += " ";
      put(c, row.cells[c].text, row.cells[c].style);
      out += " " + bar;
    }
    out += "\n";
  }
  rule(g.bottom);
  return out;
}

}  // namespace cairn::cli
