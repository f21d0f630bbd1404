#pragma once
// The targets of a cluster, in figures that do not depend on the machine: counts, and simulated
// times.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::testing {

struct TargetRow {
  std::string name;  // The name of the benchmark's row.
  std::string what;
  double got = 0;
  double limit = 0;
  double goal = 0;      // The value that would be good. 0: the limit.
  bool at_most = true;  // Otherwise at least.
  bool met() const { return at_most ? got <= limit : got >= limit; }
};

// Directories of `members` members: how even they are.
std::vector<TargetRow> MeasureBalance(size_t members);
// One member has a prefix of 64 blocks, and all the others want it at once.
struct HerdLimits {
  double transfers = 0, transfers_goal = 0;
  double copies = 0, copies_goal = 0;
};
inline constexpr HerdLimits kEight = {3.5, 2.4, 4, 3};
inline constexpr HerdLimits kHundreds = {5, 4, 5, 5};
std::vector<TargetRow> MeasureHerd(size_t members, const HerdLimits& limits);
// Members come and go for ten minutes, a tenth of them each way.
std::vector<TargetRow> MeasureChurn(size_t members);
// No answer from discovery for ten minutes.
std::vector<TargetRow> MeasureSleepingDiscovery();
// Half of the members speak one version more.
std::vector<TargetRow> MeasureTwoVersions();

std::string Table(const std::vector<TargetRow>& rows);
// One line for each row: {"name", "what", "got", "limit", "goal", "at_most"}.
std::string Json(const std::vector<TargetRow>& rows);

}  // namespace cairn::testing
