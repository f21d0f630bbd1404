#pragma once
// The counters of the picker.

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace cairn::router {

enum class PickResult : uint8_t {
  kPicked,
  kRejected,     // Something was wrong with the request.
  kShed,         // It would wait too long, or too many are under way.
  kUnavailable,  // No worker that the gateway wants can answer.
  kFailed,       // All else.
};
inline constexpr size_t kPickResults = 5;
std::string_view Name(PickResult result);  // Label values: "picked", ...

// At one moment.
struct PickerStats {
  std::array<uint64_t, kPickResults> results = {};
  uint64_t open_streams = 0;  // Now: requests whose answer has not ended.
  uint64_t body_bytes = 0;    // Now: of requests that wait, or whose pieces do.
  uint64_t body_refusals = 0;
  uint64_t moved = 0;  // Answers that came from another endpoint than the picked one.
};

// Thread-safe, without locks.
class PickerCounters {
 public:
  void Count(PickResult result) { ++results_[static_cast<size_t>(result)]; }
  void Moved() { ++moved_; }
  void Opened() { ++open_; }
  void Closed() { --open_; }
  PickerStats Get() const {
    PickerStats stats;
    for (size_t i = 0; i < kPickResults; ++i) stats.results[i] = results_[i];
    stats.open_streams = open_;
    stats.moved = moved_;
    return stats;
  }

 private:
  std::array<std::atomic<uint64_t>, kPickResults> results_ = {};
  std::atomic<uint64_t> open_{0}, moved_{0};
};

}  // namespace cairn::router
