#pragma once
// How long the demo takes on a machine: its work, counted, times a short measurement.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::cli {

// The speed of a worker of the demo with a short prompt.
struct DemoSpeed {
  double start_s = 0;         // Until a new process has answered the prompt that warms it up.
  double prompt_token_s = 0;  // Seconds for a prompt of `measured_tokens`, for each of its tokens.
  double answer_token_s = 0;  // Between two tokens of an answer.
  uint32_t measured_tokens = 0;
};

// The size of the demo's work.
struct DemoSize {
  uint32_t questions = 0, turns = 0;
  uint32_t shared_tokens = 0;  // The tokens of the text that all questions are about.
  uint32_t chat_tokens = 0;    // The tokens of the chat's text.
  uint32_t long_tokens = 0;    // The tokens of the long question.
  uint32_t beyond_tokens = 0;  // The tokens of the prompt that is longer than a worker's memory.
  bool own_node = true;        // Not one that was there before: with the phases that kill nodes.
};

// Not thread-safe.
class DemoEstimate {
 public:
  DemoEstimate() = default;  // Knows nothing: all times are 0.
  DemoEstimate(const DemoSpeed& speed, const DemoSize& size);

  double total_s() const;
  // From the start of `phase` ("cold", "disk", ...) on, when `passed_s` seconds have passed since
  // the first phase began. The phases before say how much slower or faster than measured the
  // machine is.
  double LeftFrom(std::string_view phase, double passed_s) const;

 private:
  struct Phase {
    std::string_view name;  // A string of static storage.
    double seconds = 0;
  };
  std::vector<Phase> phases_;
};

// The questions that fit into `seconds`, of those of `size`, but `least` of them at least.
uint32_t QuestionsWithin(double seconds, const DemoSpeed& speed, DemoSize size, uint32_t least);

// "about 40 s", "about 4 min", "about 1 h 20 min": as coarse as an estimate is.
std::string About(double seconds);

}  // namespace cairn::cli
