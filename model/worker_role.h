#pragma once
// The requests that a worker takes, where prefill and decode are apart
// (docs/operate/disaggregation.md).

#include <cstdint>
#include <string_view>

namespace cairn::model {

enum class WorkerRole : uint8_t {
  kBoth,
  kPrefill,  // Only requests with prefill_only: prompts that it computes for other workers.
  kDecode,   // None of these.
};

// "both", "prefill", "decode".
constexpr std::string_view Name(WorkerRole role) {
  switch (role) {
    case WorkerRole::kBoth:
      return "both";
    case WorkerRole::kPrefill:
      return "prefill";
    case WorkerRole::kDecode:
      return "decode";
  }
  return "unknown";
}

}  // namespace cairn::model
