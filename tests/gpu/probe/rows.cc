#include "tests/gpu/probe/rows.h"

#include <algorithm>
#include <cstdio>

namespace cairn::gpu {
namespace {

// Tabs and line ends are the format's own.
std::string Plain(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return text;
}

}  // namespace

void Print(const Row& row) {
  std::printf("row\t%d\t%s\t%.6g\t%s\t%s\t%s\t%s\n", row.rank, Plain(row.what).c_str(), row.value,
              row.unit.c_str(), row.floor.c_str(), row.goal.c_str(), Plain(row.note).c_str());
  std::fflush(stdout);
}

void PrintSkipped(int rank, const std::string& what, const std::string& reason) {
  std::printf("skip\t%d\t%s\t%s\n", rank, Plain(what).c_str(), Plain(reason).c_str());
  std::fflush(stdout);
}

}  // namespace cairn::gpu
