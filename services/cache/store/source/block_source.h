#pragma once
// A source: a place outside this node that may have blocks which no tier of this node holds, such
// as another node or a store that several nodes share.
//
// A tier belongs to the node, and the index knows what lies in it. A source belongs to nobody here:
// it may be slow, wrong or gone at any time. So it promises nothing, and each of its failures is a
// miss.
//
//   Locate   which of these keys could you give?     for a match, after the tiers were asked
//   Read     give me this block                      for a fetch, when no tier has the block
//
// The bytes of a block are its stored parts (docs/inside/formats/part.md), exactly as their writer
// sealed them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn::cache {

// Consecutive blocks that a source can give from one place.
struct SourceRun {
  uint32_t blocks = 0;
  uint64_t bytes = 0;  // Bytes of the stored parts, as far as the source knows.
  // From the answer until the last byte of the run could be at this node, when the runs before it
  // are read, too. Never falls from run to run. 0: unknown.
  double seconds = 0;
};

// The blocks that a source has, of the keys that it was asked for: the first ones, without a gap.
struct Located {
  std::vector<SourceRun> runs;
};

// A source's description of a block, before it gives the bytes.
struct SourceBlock {
  static constexpr size_t kMaxParts = 1024;
  struct Part {
    format::PartRect rect;
    uint32_t bytes = 0;  // Including the part's header.
  };
  std::optional<BlockKey> parent;
  bool at_start = false;  // The block begins a sequence.
  float recompute_seconds = 0;
  std::vector<Part> parts;  // They cover the grid of layers and heads, and do not overlap.
};

// Where the bytes of one block go. One thread at a time uses it.
class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // Returns room for the bytes of each part, in the order of `block.parts`, valid until the read
  // ends or Begin is called again. A source that turns to another holder begins again.
  // INVALID_ARGUMENT: the namespace has no such parts. Any other error: the node does not want the
  // bytes now, and the source ends the read with that error.
  virtual Result<std::vector<std::span<std::byte>>> Begin(const SourceBlock& block) = 0;
  // All bytes are in place: compares them with the hashes of their writer. DATA_LOSS: they differ,
  // and the source may begin again with another holder. OK: the read succeeds.
  virtual Status Finish() = 0;
};

// Thread-safe. No call blocks. Each callback runs at most once, on any thread, possibly inside the
// call, and is short. A source that goes away destroys the callbacks that it has not run, which
// counts as a failure. It lets go of every callback before the engine is destroyed.
class BlockSource {
 public:
  using LocateDone = std::function<void(Result<Located>)>;
  using ReadDone = std::function<void(Status)>;

  virtual ~BlockSource() = default;

  // Says what it could give of `keys`, which follow each other in one sequence. `keys` are valid
  // until `done` has run or is destroyed. `deadline`: when the answer is no longer of use, by the
  // node's clock; a source that has none by then calls back with DEADLINE_EXCEEDED.
  virtual void Locate(const Digest& fingerprint, std::span<const BlockKey> keys, TimePoint deadline,
                      LocateDone done) = 0;

  // The same for a caller who was told that these members of a cluster hold the blocks, at most 4.
  // `trace`: the trace id of calls that this makes; may be empty.
  virtual void LocateAt(const Digest& fingerprint, std::span<const BlockKey> keys,
                        std::span<const std::string> /*holders*/, TimePoint deadline,
                        const std::string& /*trace*/, LocateDone done) {
    Locate(fingerprint, keys, deadline, std::move(done));
  }

  // Brings one block into `sink`, which is valid until `done` has run or is destroyed. OK only
  // after an OK of BlockSink::Finish. NOT_FOUND: it does not have the block. DATA_LOSS: all that it
  // could get was damaged. DEADLINE_EXCEEDED as above. RESOURCE_EXHAUSTED: it is busy. Any other
  // error: it could not be reached.
  virtual void Read(const Digest& fingerprint, const BlockKey& key, TimePoint deadline,
                    BlockSink* sink, ReadDone done) = 0;
};

}  // namespace cairn::cache
