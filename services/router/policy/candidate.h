#pragma once
// Why a worker was picked, or was not.

#include <cstdint>
#include <string>
#include <vector>

namespace cairn::router {

// One worker of a decision.
struct Candidate {
  std::string worker = {};  // Address.
  bool usable = true;
  std::string reason = {};   // Why a worker is unusable, for people.
  uint32_t held_tokens = 0;  // Tokens of the prompt that this worker need not compute.
  double queue_seconds = 0;  // As in the cost (docs/operate/router.md).
  double fetch_seconds = 0;
  double work_seconds = 0;
  double delayed_requests = 0;
  double cost = 0;  // Seconds, whatever the policy is.
};

struct Pick {
  std::string worker = {};
  std::string prefill_worker = {};  // Computes the prompt for it. Empty: it does so itself.
  std::string policy = {};
  uint32_t prompt_tokens = 0;
  std::vector<Candidate> candidates = {};
};

}  // namespace cairn::router
