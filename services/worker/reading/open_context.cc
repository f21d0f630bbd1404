#include "services/worker/reading/open_context.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

Status CheckReading(const ReadingTerms& terms, const KvLayout& kv) {
  if (terms.backend == nullptr || !terms.backend->runs_inline ||
      terms.backend->reading == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "read policy: the backend has no kernels that read a context by rows");
  }
  return CheckReadPolicy(terms.policy, kv);
}

Result<std::unique_ptr<ContextReader>> OpenContext(const ReadingTerms& terms,
                                                   const KvSequence& sequence, int64_t rows,
                                                   int64_t own_tokens, kernels::ThreadPool& pool) {
  const KvLayout& kv = sequence.layout();
  CAIRN_CHECK(rows > 0 && rows % kv.block_tokens == 0 && rows <= sequence.length());
  const int64_t own_pages = (own_tokens + kv.block_tokens - 1) / kv.block_tokens;
  CAIRN_ASSIGN_OR_RETURN(
      const NearMemory near,
      ShareBudget(terms.policy, kv, rows, static_cast<uint64_t>(own_pages) * kv.page_bytes(),
                  terms.budget));
  const auto pages = FarPages::Of(sequence, rows / kv.block_tokens);
  if (pages == nullptr) {
    return Errorf(StatusCode::kAborted, "the cache node took lent memory back");
  }
  ContextReader::Setup setup;
  setup.policy = terms.policy;
  setup.kv = kv;
  setup.heads = terms.heads;
  setup.rows = rows;
  setup.near = near;
  CAIRN_ASSIGN_OR_RETURN(setup.index, RowIndex::Make(terms.policy, *pages, *terms.backend, pool));
  setup.source = terms.source ? terms.source(pages) : std::make_unique<PageRows>(pages);
  setup.backend = terms.backend;
  setup.clock = terms.clock;
  auto reader = std::make_unique<ContextReader>(std::move(setup));
  const int64_t sink = std::min(terms.policy.sink, rows);
  for (int layer = 0; layer < kv.layers; ++layer) {
    for (int head = 0; head < kv.kv_heads; ++head) {
      for (int64_t row = 0; row < sink; ++row) {
        const size_t at = static_cast<size_t>(row % kv.block_tokens) * kv.row_bytes();
        const int64_t page = row / kv.block_tokens;
        reader->AddSink(layer, head, static_cast<int32_t>(row), pages->K(layer, head, page) + at,
                        pages->V(layer, head, page) + at);
      }
    }
  }
  // The index and the first rows were read from lent memory, too.
  if (!pages->Intact()) {
    return Errorf(StatusCode::kAborted, "the cache node took lent memory back");
  }
  return reader;
}

}  // namespace cairn::worker
