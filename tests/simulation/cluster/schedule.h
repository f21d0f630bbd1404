#pragma once
// A schedule of events for a cluster: made from a seed, played, and shortened when it fails.

#include <cstdint>
#include <string>
#include <vector>

#include "cairn/common/clock.h"

namespace cairn::testing {

struct ClusterEvent {
  enum class Kind : uint8_t {
    kStore,       // Node a stores prompt b, c blocks of it.
    kGet,         // Node a asks for prompt b, c blocks of it.
    kBump,        // At node a, of namespace b.
    kDrop,        // The same.
    kCut,         // From a to b, one way.
    kIsolate,     // a from all others.
    kPartition,   // Into b + 1 groups.
    kHeal,        // All cuts.
    kPause,       // Node a stops.
    kResume,      // It goes on.
    kKill,        // kill -9 of node a, or, if b is 2, a power loss.
    kStart,       // Node a again, with its disk as it was, empty, or an old copy of it (b).
    kCopyDisk,    // The disk of node a.
    kClone,       // A machine b comes with a copy of the disk of a.
    kLeave,       // Node a.
    kNames,       // Node a hears something else (b) about who may exist; c: all nodes.
    kSlowLink,    // Node a: b kilobytes a second.
    kLoss,        // b in 1,000 messages are lost, and c in 1,000 come twice.
    kClockRate,   // Node a: b is parts in 1,000, from 900 on.
    kLie,         // Node a damages what it sends (b: 1), or no more (0).
    kFalseHello,  // Somebody greets all as a newer process of node a at the address of b.
    kDisk,        // The disk of node a: the next c operations go wrong (b: a DiskFault).
  };
  Kind kind = Kind::kGet;
  Duration at{0};
  uint32_t a = 0, b = 0, c = 0;
};

struct ClusterSchedule {
  uint64_t seed = 1;  // The seed of everything that the events do not say.
  size_t machines = 8;
  size_t started = 6;  // The others come later, or never.
  Duration length = std::chrono::seconds(60);
  bool whole = false;  // Nodes have their whole engine, not the light one.
  std::vector<ClusterEvent> events = {};
};

// `machines` 0: the seed decides.
ClusterSchedule MakeSchedule(uint64_t seed, size_t machines = 0,
                             Duration length = std::chrono::seconds(60));

struct PlayResult {
  std::vector<std::string> wrong;
  uint64_t trace = 0;
  uint64_t steps = 0;
  // Sums of all nodes that lived at the end.
  uint64_t accepted = 0, outdated = 0, calls = 0;
  uint64_t requests = 0, served_by_peers = 0;
};
// Plays it, lets the cluster become calm, and looks at everything that must be true then.
PlayResult Play(const ClusterSchedule& schedule);

// Leaves out events as long as it still fails, in at most `plays` plays.
ClusterSchedule Shorten(ClusterSchedule schedule, size_t plays = 100);

// As C++, for a test of it.
std::string ToText(const ClusterSchedule& schedule);

}  // namespace cairn::testing
