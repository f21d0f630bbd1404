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
  // A slice per block, KvLayout::layer_bytes() each; valid until the next call. Layers come in
  // order, from 0.
  virtual Result<std::span<const std::byte* const>> Layer(int layer) = 0;
};

// Of pages that are here.
class PageLayers final : public ContextLayers {
 public:
  explicit PageLayers(std::shared_ptr<const FarPages> pages) : pages_(std::move(pages)) {}
  int64_t rows() const override { return pages_->rows(); }
  Result<std::span<const std::byte* const>> Layer(int layer) override;

 private:
  const std::shared_ptr<const FarPages> pages_;
  std::vector<const std::byte*> slices_;
};

// Of KV that comes in windows: a layer at a time is gathered in memory of its own.
class WindowLayers final : public ContextLayers {
 public:
  // Both must outlive it.
  WindowLayers(EarlierKv& earlier, const KvLayout& kv) : earlier_(earlier), kv_(kv) {}
  int64_t rows() const override { return earlier_.tokens(); }
  Result<std::span<const std::byte* const>> Layer(int layer) override;

 private:
  EarlierKv& earlier_;
  const KvLayout& kv_;
  std::vector<std::byte> layer_;
  std::vector<const std::byte*> slices_;
};

}  // namespace cairn::worker
