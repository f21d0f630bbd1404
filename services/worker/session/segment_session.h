#pragma once
// The segments of a prompt at a cache node: finds and fetches them, and names and queues a new one
// (docs/methods/selections.md).
//
// A prompt does not say where somebody cut it into segments. So for each block boundary the session
// asks about the last block of a segment that would end there, all in one call. It takes the
// deepest one that exists, and then does the same below it. A segment that is there only partly is
// a miss.

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

// The rows that are kept of block `block` of a segment.
SelectedRows RowsOfBlock(const KvLayout& kv, const selections::KeptRows& kept, uint32_t block);

// Not thread-safe. Nothing here makes a request fail: every problem is a miss with a reason.
class SegmentSession {
 public:
  // All must outlive it. REQUIRES: session.codec().selected().
  SegmentSession(PrefixSession& session, KvPool& pool, const Clock& clock);

  // Whole segments, one after the other from the prompt's first token.
  struct Path {
    std::vector<uint32_t> ends;  // The end of each, in blocks of the prompt. Ascending.
    std::vector<BlockKey> keys;  // The keys of all their blocks.
    uint32_t blocks() const { return ends.empty() ? 0 : ends.back(); }
    // The last block of the last one, whose children follow.
    std::optional<BlockKey> last() const {
      return keys.empty() ? std::nullopt : std::optional(keys.back());
    }
  };
  struct Found {
    Path path;
    MissReason reason = MissReason::kNone;  // Why it is not longer.
    double seconds = 0;
    PrefixSession::Match match;  // The match of all blocks of the path, under a lease.
  };
  // `chain`: PrefixSession::Keys of the prompt's tokens, of as many blocks as segments may end in.
  Found Find(std::span<const BlockKey> chain, double prefill_speed, const std::string& trace);

  struct Fetched {
    std::shared_ptr<const RaggedPrefix> prefix;  // Null: nothing came.
    Path path;                                   // The segments that were fetched: whole ones.
    MissReason reason = MissReason::kNone;       // Why not more.
    BytesByTier bytes;
    client::Path way = client::Path::kGrpc;
    double seconds = 0;  // Decoding included.
  };
  // Fetches and decodes, on this thread and `pool`. Nothing is computed at the same time.
  // `make_room` is called once if the pool has too few pages. REQUIRES: found.path is not empty.
  Fetched Fetch(Found found, const PrefixSession::FetchWanted& wanted, kernels::ThreadPool& pool,
                const std::function<void()>& make_room);

  // Returns the blocks that the push of a new segment needs: the rows that `prefix` got from the
  // segment on blocks [begin, end) of the prompt, below `parent`. `compute_seconds`: by block of
  // the prompt. The blocks keep the prefix alive.
  std::vector<ComputedBlock> NewSegment(const Path& parent, const BlockKey& chain_end, uint32_t end,
                                        const selections::KeptRows& kept,
                                        std::shared_ptr<const RaggedPrefix> prefix,
                                        std::span<const double> compute_seconds,
                                        const std::string& trace) const;

 private:
  PrefixSession& session_;
  KvPool& pool_;
  const Clock& clock_;
};

}  // namespace cairn::worker
