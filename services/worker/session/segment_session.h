#pragma once
// Segments of a prompt at a cache node: which there are, bringing them, naming and queueing a new
// one (docs/selections.md).
//
// A prompt does not say where somebody cut it into segments. So the last block of a segment that
// would end at each block boundary is asked about, all in one call; the deepest that is there is
// followed, and then the same below it. A part of a segment is a miss.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/kernels/thread_pool.h"
#include "kernels/selections/kept_rows.h"
#include "services/worker/kv/ragged_prefix.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// What is kept of block `block` of a segment.
SelectedRows RowsOfBlock(const KvLayout& kv, const selections::KeptRows& kept, uint32_t block);

// Not thread-safe. Nothing here fails a request: every trouble is a miss with a reason.
class SegmentSession {
 public:
  // Both must outlive it. REQUIRES: session.codec().selected().
  SegmentSession(PrefixSession& session, KvPool& pool);

  // Whole segments, one after the other from the prompt's first token.
  struct Path {
    std::vector<uint32_t> ends;  // Of each, in blocks of the prompt. Ascending.
    std::vector<BlockKey> keys;  // Of all their blocks.
    uint32_t blocks() const { return ends.empty() ? 0 : ends.back(); }
    // The last block of the last one, whose children follow.
    std::optional<BlockKey> last() const {
      return keys.empty() ? std::nullopt : std::optional(keys.back());
    }
  };
  struct Found {
    Path path;
    MissReason reason = MissReason::kNone;  // Why there is not more of it.
    double seconds = 0;
    PrefixSession::Match match;  // Of all blocks of the path, under a lease.
  };
  // `chain`: PrefixSession::Keys of the prompt's tokens, of as many blocks as segments may end in.
  Found Find(std::span<const BlockKey> chain, double prefill_speed, const std::string& trace);

  struct Fetched {
    std::shared_ptr<const RaggedPrefix> prefix;  // Null: nothing came.
    Path path;                                   // What came of it: whole segments.
    MissReason reason = MissReason::kNone;       // Why not more.
    BytesByTier bytes;
    client::Path way = client::Path::kGrpc;
    double seconds = 0;  // Decoding included.
  };
  // Brings and decodes, on this thread and `pool`; nothing is computed meanwhile. `make_room` is
  // called once when the pool of pages is short. REQUIRES: found.path is not empty.
  Fetched Fetch(Found found, const PrefixSession::FetchWanted& wanted, kernels::ThreadPool& pool,
                const std::function<void()>& make_room);

  // What a new segment's push needs: rows that `prefix` got from the segment on blocks [begin, end)
  // of the prompt, below `parent`. `compute_seconds`: by block of the prompt. The blocks hold the
  // prefix.
  std::vector<ComputedBlock> NewSegment(const Path& parent, const BlockKey& chain_end, uint32_t end,
                                        const selections::KeptRows& kept,
                                        std::shared_ptr<const RaggedPrefix> prefix,
                                        std::span<const double> compute_seconds,
                                        const std::string& trace) const;

 private:
  PrefixSession& session_;
  KvPool& pool_;
};

}  // namespace cairn::worker
