#include "services/worker/methods/reading/open_context.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace cairn::worker {
namespace {

// Those of the first `sink` rows of the context that are in the part.
void AddSinks(int layer, const LayerView& part, int64_t sink, ContextReader& reader) {
  const KvLayout& kv = part.layout();
  for (int64_t row = part.first_row(); row < std::min(sink, part.end_row()); ++row) {
    const int64_t here = row - part.first_row();
    const size_t at = static_cast<size_t>(here % kv.block_tokens) * kv.row_bytes();
    for (int head = 0; head < kv.kv_heads; ++head) {
      reader.AddSink(layer, head, static_cast<int32_t>(row),
                     part.K(head, here / kv.block_tokens) + at,
                     part.V(head, here / kv.block_tokens) + at);
    }
  }
}

}  // namespace

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
                                                   int64_t own_tokens, kernels::ThreadPool& pool,
                                                   const ContextName& name) {
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
      own_tokens, pool, name);
  // Numbers that are not finite may have been those of somebody else.
  if (!reader.ok() && !pages->Intact()) return aborted();
  return reader;
}

Result<std::unique_ptr<ContextReader>> OpenFarContext(const ReadingTerms& terms, const KvLayout& kv,
                                                      ContextLayers& layers,
                                                      std::unique_ptr<RowSource> source,
                                                      int64_t own_tokens, kernels::ThreadPool& pool,
                                                      const ContextName& name) {
  const int64_t rows = layers.rows();
  const int64_t own_pages = (own_tokens + kv.block_tokens - 1) / kv.block_tokens;
  CAIRN_ASSIGN_OR_RETURN(
      const NearMemory near,
      ShareBudget(terms.policy, kv, rows, static_cast<uint64_t>(own_pages) * kv.page_bytes(),
                  terms.budget));
  const auto make = [&] {
    return RowIndex::Make(terms.policy, kv, rows, *terms.backend, terms.rotations);
  };
  std::unique_ptr<RowIndex> index = make();
  const bool kept = terms.indexes != nullptr && name.last_block;
  const bool fetched = kept && terms.indexes->Fetch(*name.last_block, *index, name.trace);
  if (kept && !fetched) index = make();
  RowIndex& indexed = *index;
  const int64_t sink = std::min(terms.policy.sink, rows);
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
  const int64_t needed = fetched ? sink : rows;
  const TimePoint start = terms.clock->Now();
  for (int layer = 0; layer < kv.layers; ++layer) {
    CAIRN_RETURN_IF_ERROR(layers.Begin(layer));
    for (int64_t row = 0; row < needed;) {
      CAIRN_ASSIGN_OR_RETURN(const auto slices, layers.Next());
      const LayerView part(kv, slices, row);
      if (!fetched && !indexed.AddRows(layer, part, pool)) {
        return InvalidArgument("read policy: the context's KV has numbers that are not finite");
      }
      AddSinks(layer, part, sink, *reader);
      row = part.end_row();
    }
    CAIRN_RETURN_IF_ERROR(layers.End());
  }
  const bool stored = kept && !fetched &&
                      terms.indexes->Push(*name.last_block, indexed,
                                          Seconds(terms.clock->Now() - start), name.trace);
  reader->CountIndex(fetched, stored);
  return reader;
}

}  // namespace cairn::worker
