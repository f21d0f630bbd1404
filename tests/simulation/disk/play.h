#pragma once
// The life of a disk tier from a seed: writers, flushes, evictions, reads and named values, on a
// disk in trouble, ended by power losses and kills at any moment, and opened again.
//
// The checks:
//   1. No read that says OK brings a wrong byte, ever.
//   2. After a power loss, what was flushed is there. After a kill, what was acknowledged is.
//   3. A named value is the last one whose Put returned OK, or a later one.
//   4. After a clean end, exactly what was there is there.
//   5. The files stay below 1.3 times the capacity, and 64 MiB.
//   6. Everything ends: a wait without an end is an error of the simulation.

#include <cstdint>
#include <string>
#include <vector>

#include "services/cache/store/tier/disk/loop.h"
#include "tests/simulation/disk/faulty_disk.h"

namespace cairn::testing {

struct DiskPlay {
  uint64_t seed = 1;
  uint32_t lives = 4;  // Each of which ends by a power loss, a kill, or in peace.
  DiskTroubles troubles = {};
};

struct DiskOutcome {
  std::vector<std::string> problems;
  std::vector<std::string> trace;
  uint64_t written = 0, moved = 0, flushes = 0, power_losses = 0, kills = 0, promised = 0;
};

DiskOutcome Play(const DiskPlay& play);

// As the disk tier starts a thread.
cache::disk::StartLoop TasksOf(Simulation& simulation);

}  // namespace cairn::testing
