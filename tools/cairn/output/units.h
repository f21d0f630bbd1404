#pragma once
// Numbers as people read them.

#include <cstdint>
#include <string>

#include "tools/cairn/output/terminal.h"

namespace cairn::cli {

// "0 B", "512 B", "94.2 MiB". Three digits.
std::string HumanBytes(uint64_t bytes);
// "12 ms", "0.84 s", "4.02 s", "2 min 5 s".
std::string HumanSeconds(double seconds);
// "4,096".
std::string Grouped(uint64_t n);
// "20.4x", "1.0x"; "-" when it cannot be told.
std::string Times(double ratio);
// A bar of at most `width` columns for value out of `full`; at least a sliver when value > 0.
std::string Bar(double value, double full, int width, const Terminal& terminal);

}  // namespace cairn::cli
