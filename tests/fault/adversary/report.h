#pragma once
// What a run of the adversary found, as text and as JSON.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cairn::fault {

struct RecipeReport {
  uint64_t passes = 0;
  uint64_t rounds = 0;
  // Of honest clients, in this recipe's rounds. A round with several recipes counts for each.
  uint64_t calls = 0;
  uint64_t failed = 0;
  double worst_success = 1;
  double worst_p99 = 0;  // Of one port, as a multiple of the yardstick's.
  std::string worst_port = {};
  std::vector<std::string> notes = {};
  std::vector<std::string> findings = {};
};

// Of honest clients at one port.
struct PortReport {
  double yardstick_p99_ms = 0;
  double yardstick_calls_per_second = 0;
  uint64_t calls = 0;
  uint64_t wrong = 0;
  double worst_p99_ms = 0;
};

struct ServerReport {
  uint64_t deaths = 0;
  uint64_t peak_bytes = 0;
  uint64_t account_bytes = 0;
};

// Not thread-safe.
struct Report {
  uint64_t seed = 0;
  double seconds = 0;
  std::map<std::string, PortReport> ports = {};
  std::map<std::string, ServerReport> servers = {};
  uint64_t rounds = 0;
  uint64_t busy_rounds = 0;      // Not judged by their time: other programs took too much.
  uint64_t repeated_rounds = 0;  // Too slow the first time.
  uint64_t read_blocks = 0;
  uint64_t probes = 0;
  uint64_t red_probes = 0;
  std::map<std::string, RecipeReport> recipes = {};
  std::vector<std::string> findings = {};  // Everything that is wrong. Empty: all is well.

  std::string Text() const;
  std::string Json() const;
};

}  // namespace cairn::fault
