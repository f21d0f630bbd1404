#pragma once
// What a cluster must be able to do, in figures that do not depend on the machine: counts, and
// simulated times.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::testing {

struct TargetRow {
  std::string what;
  double got = 0;
  double limit = 0;
  bool at_most = true;  // Otherwise at least.
  bool met() const { return at_most ? got <= limit : got >= limit; }
};

// Directories of so many members: how even they are.
std::vector<TargetRow> MeasureBalance(size_t members);
// So many members want one prefix of 64 blocks at once, which one member has.
std::vector<TargetRow> MeasureHerd(size_t members, double most_transfers, double most_copies);
// Members come and go for ten minutes, a tenth of them each way.
std::vector<TargetRow> MeasureChurn(size_t members);
// No answer from discovery for ten minutes.
std::vector<TargetRow> MeasureSleepingDiscovery();
// Half of the members speak one version more.
std::vector<TargetRow> MeasureTwoVersions();

std::string Table(const std::vector<TargetRow>& rows);

}  // namespace cairn::testing
