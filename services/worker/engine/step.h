#pragma once
// The outcome of one step of a resumable piece of work.

#include <cstdint>

#include "services/worker/compute/transformer.h"

namespace cairn::worker {

struct Step {
  enum class Kind : uint8_t {
    kWorked,    // A piece of work is done. Step again.
    kWaiting,   // Nothing to do before fetched bytes, rows, pages or a reader are there.
    kChunk,     // `chunk` must go through Transformer::Forward, and then to Computed.
    kFinished,  // There is no more work.
  };
  Kind kind = Kind::kWorked;
  SequenceChunk chunk = {};  // With kChunk. Valid until Computed.
};

// How a chunk went through Transformer::Forward.
struct Pass {
  double seconds = 0;      // The chunk's share of the pass.
  bool disturbed = false;  // Other chunks were in the pass: it says nothing about the speed.
};

}  // namespace cairn::worker
