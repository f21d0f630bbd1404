#pragma once
// From a sequence whose prompt is computed to one that is read by rows.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"
#include "cairn/kernels/backend.h"
#include "cairn/kernels/thread_pool.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/reading/context_layers.h"
#include "services/worker/reading/context_reader.h"
#include "services/worker/reading/far_pages.h"
#include "services/worker/reading/index_store.h"

namespace cairn::worker {

// How a worker reads contexts. References must outlive the readers.
struct ReadingTerms {
  ReadPolicy policy;
  NearBudget budget;  // Near memory of all requests.
  int32_t heads = 0;  // Heads of queries, in a layer.
  const kernels::Backend* backend = nullptr;
  const Clock* clock = nullptr;
  // Those that the policy names; null when it names none.
  std::shared_ptr<const KeyRotations> rotations = nullptr;
  // Where indexes are kept, if the policy's are. Null: each is made again.
  const IndexStore* indexes = nullptr;
  // Makes the source of a context's rows. Null: PageRows.
  std::function<std::unique_ptr<RowSource>(std::shared_ptr<const FarPages>)> source = nullptr;
};

// The name of a context at the cache node.
struct ContextName {
  // The key of its last block, of exact lineage. nullopt: it has no name, so its index is made here
  // and not kept.
  std::optional<BlockKey> last_block = {};
  std::string trace = {};
};

// INVALID_ARGUMENT or FAILED_PRECONDITION: the policy does not suit the model, or the backend.
Status CheckReading(const ReadingTerms& terms, const KvLayout& kv);

// Opens the first `rows` tokens of `sequence`, whole blocks, at least one, which stay in host
// memory. `own_tokens`: those that may follow. The sequence is only read. INVALID_ARGUMENT: as
// ShareBudget, or the KV is not finite. ABORTED: the node took lent memory back.
Result<std::unique_ptr<ContextReader>> OpenContext(const ReadingTerms& terms,
                                                   const KvSequence& sequence, int64_t rows,
                                                   int64_t own_tokens, kernels::ThreadPool& pool,
                                                   const ContextName& name = {});

// Opens a context whose layers are read once, or, if its index is at the cache node, as far as its
// first rows need; and whose rows come from `source`. Errors: as above, and those of the layers.
Result<std::unique_ptr<ContextReader>> OpenFarContext(const ReadingTerms& terms, const KvLayout& kv,
                                                      ContextLayers& layers,
                                                      std::unique_ptr<RowSource> source,
                                                      int64_t own_tokens, kernels::ThreadPool& pool,
                                                      const ContextName& name = {});

}  // namespace cairn::worker
