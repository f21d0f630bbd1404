#pragma once
// How a worker with a read policy reads contexts by rows (docs/methods/long-context.md): opens the
// DecodeReader that decode steps attend through. The plain worker has none; methods.h says who
// makes it.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "cairn/kernels/thread_pool.h"
#include "services/worker/compute/decode_reader.h"
#include "services/worker/engine/spilled_prompt.h"
#include "services/worker/kv/earlier_kv.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

// The first tokens of a sequence, which are read by rows.
struct ContextToRead {
  int64_t rows = 0;        // Whole blocks, at least one.
  int64_t own_tokens = 0;  // That may follow.
  // The key of its last block, of exact lineage. nullopt: it has no name, so its index is made here
  // and not kept.
  std::optional<BlockKey> last_block = {};
  std::string trace = {};
};

struct OpenedContext {
  std::unique_ptr<DecodeReader> reader;
  std::string policy;       // With all parameters.
  int64_t rows = 0;         // That it reads.
  uint64_t near_bytes = 0;  // Copy or index, working set and rows that arrive.
};

// Immutable.
class ContextOpener {
 public:
  ContextOpener() = default;
  virtual ~ContextOpener() = default;
  ContextOpener(const ContextOpener&) = delete;
  ContextOpener& operator=(const ContextOpener&) = delete;

  // INVALID_ARGUMENT: the near memory is too small for a context of `rows` rows, with `own_bytes`
  // for the tokens behind it.
  virtual Status CheckBudget(int64_t rows, uint64_t own_bytes) const = 0;
  // Of a sequence, which is only read and stays in host memory. INVALID_ARGUMENT: as CheckBudget,
  // or the KV is not finite. ABORTED: the node took lent memory back.
  virtual Result<OpenedContext> Open(const KvSequence& sequence, const ContextToRead& context,
                                     kernels::ThreadPool& pool) const = 0;
  // Of a prompt that was spilt to the node, which keeps the rows: `earlier` has them all, as blocks
  // with these keys. Errors: as above, and those of the node.
  virtual Result<OpenedContext> OpenSpilled(EarlierKv& earlier, const SpillServices& node,
                                            std::span<const BlockKey> keys,
                                            const ContextToRead& context,
                                            kernels::ThreadPool& pool) const = 0;
};

}  // namespace cairn::worker
