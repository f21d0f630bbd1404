#pragma once
// A read policy as the way in which a worker reads its contexts.

#include <memory>
#include <span>

#include "cairn/common/status.h"
#include "services/worker/engine/context_opener.h"
#include "services/worker/engine/methods.h"
#include "services/worker/methods/reading/index_store.h"
#include "services/worker/methods/reading/open_context.h"

namespace cairn::worker {

// As ContextOpener. Immutable.
class PolicyReading final : public ContextOpener {
 public:
  // Errors: those of methods::NewContextOpener.
  static Result<std::unique_ptr<const PolicyReading>> Create(const methods::ReadingInputs& inputs);

  Status CheckBudget(int64_t rows, uint64_t own_bytes) const override;
  Result<OpenedContext> Open(const KvSequence& sequence, const ContextToRead& context,
                             kernels::ThreadPool& pool) const override;
  Result<OpenedContext> OpenSpilled(EarlierKv& earlier, const SpillServices& node,
                                    std::span<const BlockKey> keys, const ContextToRead& context,
                                    kernels::ThreadPool& pool) const override;

 private:
  explicit PolicyReading(const KvLayout& kv) : kv_(kv) {}

  const KvLayout kv_;
  std::unique_ptr<const IndexStore> indexes_;  // Null: indexes are kept nowhere.
  ReadingTerms terms_;
};

}  // namespace cairn::worker
