#include "services/worker/reading/open_context.h"

#include <algorithm>
#include <utility>
#include <vector>

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
  const auto pages = FarPages::Of(sequence, rows / kv.block_tokens);
  const auto aborted = [] {
    return Errorf(StatusCode::kAborted, "the cache node took lent memory back");
  };
  if (pages == nullptr) return aborted();
  PageLayers layers(pages);
  auto reader = OpenFarContext(
      terms, kv, layers, terms.source ? terms.source(pages) : std::make_unique<PageRows>(pages),
      own_tokens, pool);
  // The index and the first rows were read from lent memory, too.
  if (!pages->Intact()) return aborted();
  return reader;
}

Result<std::unique_ptr<ContextReader>> OpenFarContext(const ReadingTerms& terms, const KvLayout& kv,
                                                      ContextLayers& layers,
                                                      std::unique_ptr<RowSource> source,
                                                      int64_t own_tokens,
                                                      kernels::ThreadPool& pool) {
  const int64_t rows = layers.rows();
  const int64_t own_pages = (own_tokens + kv.block_tokens - 1) / kv.block_tokens;
  CAIRN_ASSIGN_OR_RETURN(
      const NearMemory near,
      ShareBudget(terms.policy, kv, rows, static_cast<uint64_t>(own_pages) * kv.page_bytes(),
                  terms.budget));
  auto index = RowIndex::Make(terms.policy, kv, rows, *terms.backend, terms.rotations);
  const int64_t sink = std::min(terms.policy.sink, rows);
  const size_t row_bytes = kv.row_bytes();
  std::vector<std::byte> first;  // Rows of K and V, one behind the other: by layer, head and row.
  for (int layer = 0; layer < kv.layers; ++layer) {
    CAIRN_ASSIGN_OR_RETURN(const auto slices, layers.Layer(layer));
    const LayerView view(kv, slices);
    if (!index->AddLayer(layer, view, pool)) {
      return InvalidArgument("read policy: the context's KV has numbers that are not finite");
    }
    for (int head = 0; head < kv.kv_heads; ++head) {
      for (int64_t row = 0; row < sink; ++row) {
        const size_t at = static_cast<size_t>(row % kv.block_tokens) * row_bytes;
        const std::byte* const k = view.K(head, row / kv.block_tokens) + at;
        const std::byte* const v = view.V(head, row / kv.block_tokens) + at;
        first.insert(first.end(), k, k + row_bytes);
        first.insert(first.end(), v, v + row_bytes);
      }
    }
  }
  ContextReader::Setup setup;
  setup.policy = terms.policy;
  setup.kv = kv;
  setup.heads = terms.heads;
  setup.rows = rows;
  setup.near = near;
  setup.index = std::move(index);
  setup.source = std::move(source);
  setup.backend = terms.backend;
  setup.clock = terms.clock;
  auto reader = std::make_unique<ContextReader>(std::move(setup));
  const std::byte* from = first.data();
  for (int layer = 0; layer < kv.layers; ++layer) {
    for (int head = 0; head < kv.kv_heads; ++head) {
      for (int64_t row = 0; row < sink; ++row, from += 2 * row_bytes) {
        reader->AddSink(layer, head, static_cast<int32_t>(row), from, from + row_bytes);
      }
    }
  }
  return reader;
}

}  // namespace cairn::worker
