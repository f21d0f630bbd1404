#pragma once
// The output of `cairn bench`.

#include <string>
#include <utility>
#include <vector>

#include "tools/cairn/bench/options.h"
#include "tools/cairn/bench/trials.h"
#include "tools/cairn/output/json.h"
#include "tools/cairn/output/terminal.h"

namespace cairn::cli::bench {

struct Report {
  BenchOptions options;
  Trials trials;
  std::vector<std::pair<std::string, std::string>> facts;       // Machine, path, versions.
  std::vector<std::pair<std::string, std::string>> yardsticks;  // Name, description.
};

// CPU, cores, memory, kernel, TCP's congestion control: what the numbers depend on.
std::vector<std::pair<std::string, std::string>> MachineFacts();

// docs/operate/cli.md lists the fields.
Json ToJson(const Report& report);
std::string ToText(const Report& report, const Terminal& terminal);

}  // namespace cairn::cli::bench
