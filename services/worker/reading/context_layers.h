#pragma once
// The KV of a context, layer by layer, for those who make an index of it.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/status.h"
#include "services/worker/kv/earlier_kv.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/reading/far_pages.h"

namespace cairn::worker {

// Not thread-safe.
class ContextLayers {
 public:
  virtual ~ContextLayers() = default;
  // Whole blocks.
  virtual int64_t rows() const = 0;
  // Layers come in order, from 0, and the blocks of each from the first one on.
  virtual Status Begin(int layer) = 0;
  // The blocks that come next, at least one: a slice of KvLayout::layer_bytes() each. Valid until
  // the next call. REQUIRES: not all were given.
  virtual Result<std::span<const std::byte* const>> Next() = 0;
  // After all blocks or some. OK: what was given since Begin was right.
  virtual Status End() = 0;
};

// The layers of pages that are here.
class PageLayers final : public ContextLayers {
 public:
  explicit PageLayers(std::shared_ptr<const FarPages> pages) : pages_(std::move(pages)) {}
  int64_t rows() const override { return pages_->rows(); }
  Status Begin(int layer) override;
  Result<std::span<const std::byte* const>> Next() override;
  // ABORTED: the node took lent memory back.
  Status End() override;

 private:
  const std::shared_ptr<const FarPages> pages_;
  std::vector<const std::byte*> slices_;
};

// The layers of KV that comes in windows: each is a part, so that no more than two windows are ever
// here.
class WindowLayers final : public ContextLayers {
 public:
  // It must outlive this object.
  explicit WindowLayers(EarlierKv& earlier) : earlier_(earlier) {}
  int64_t rows() const override { return earlier_.tokens(); }
  Status Begin(int layer) override { return earlier_.Begin(layer); }
  Result<std::span<const std::byte* const>> Next() override;
  Status End() override { return earlier_.End(); }

 private:
  EarlierKv& earlier_;
};

}  // namespace cairn::worker
