#pragma once
// A probe's messages to tests/gpu/run.sh, one line for each result, fields with tabs between them:
//
//   row   RANK WHAT VALUE UNIT FLOOR GOAL NOTE
//   skip  RANK WHAT REASON
//
// Lower ranks are more important. FLOOR and GOAL are "-", or a number that the value should reach;
// "<=" before it: should not exceed.

#include <string>

namespace cairn::gpu {

struct Row {
  int rank = 0;
  std::string what;
  double value = 0;
  std::string unit;
  std::string floor = "-";
  std::string goal = "-";
  std::string note = {};
};

void Print(const Row& row);
void PrintSkipped(int rank, const std::string& what, const std::string& reason);

}  // namespace cairn::gpu
