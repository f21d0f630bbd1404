#pragma once
// What a read policy keeps near of a context beside its working set, and how it ranks rows: by
// logits of units (rows, or pages of rows) with a form of the query.

#include <cstdint>
#include <memory>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/kernels/backend.h"
#include "cairn/kernels/thread_pool.h"
#include "services/worker/reading/far_pages.h"
#include "services/worker/reading/read_policy.h"

namespace cairn::worker {

// Immutable once made: any thread may use it at any time.
class RowIndex {
 public:
  virtual ~RowIndex() = default;

  // Of a context of so many rows.
  static uint64_t Bytes(const ReadPolicy& policy, const KvLayout& kv, int64_t rows);
  // `backend` runs inline. INVALID_ARGUMENT: the KV has numbers that are not finite.
  static Result<std::unique_ptr<const RowIndex>> Make(const ReadPolicy& policy,
                                                      const FarPages& pages,
                                                      const kernels::Backend& backend,
                                                      kernels::ThreadPool& pool);

  int64_t units() const { return units_; }
  // Numbers of a query's form.
  int64_t width() const { return width_; }
  // Units of one head of one layer: row u is unit u's, `width` numbers.
  virtual kernels::CopyRows Units(int layer, int head) const = 0;
  // The form of a query of `head_dim` numbers: `to` gets `width`.
  virtual void Form(int layer, int head, const float* q, float* to) const = 0;
  // Values of the copy, by row; without data where the policy has none.
  virtual kernels::CopyRows Values(int /*layer*/, int /*head*/) const { return {}; }

 protected:
  RowIndex(int64_t units, int64_t width) : units_(units), width_(width) {}

 private:
  const int64_t units_;
  const int64_t width_;
};

}  // namespace cairn::worker
