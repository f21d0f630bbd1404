#pragma once
// Tables for people: aligned columns in a box.

#include <string>
#include <vector>

#include "tools/cairn/output/terminal.h"

namespace cairn::cli {

enum class Align { kLeft, kRight };

struct Cell {
  Cell(std::string t, Style s = Style::kPlain) : text(std::move(t)), style(s) {}
  Cell(const char* t) : text(t) {}
  std::string text;
  Style style = Style::kPlain;
};

// Not thread-safe.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Missing cells are empty, surplus ones are dropped.
  void AddRow(std::vector<Cell> cells);
  // A line between the rows before and after.
  void AddRule();

  // With a trailing newline. Columns are as wide as their widest cell; long tables are not wrapped.
  std::string Render(const Terminal& terminal) const;

 private:
  struct Row {
    bool rule = false;
    std::vector<Cell> cells;
  };
  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

}  // namespace cairn::cli
