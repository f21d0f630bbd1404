#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "cairn/kernels/stream.h"
#include "services/worker/reading/index_parts.h"
#include "services/worker/reading/key_clusters.h"

namespace cairn::worker {
namespace {

// Units are rows, and those of a cluster share its mean key.
class ClusterIndex final : public RowIndex {
 public:
  explicit ClusterIndex(const IndexShape& s)
      : RowIndex(s.rows, s.stored(), s.dim()),
        backend_(s.backend),
        heads_(s.kv.kv_heads),
        planes_(s.kv, stored(), s.unit_form(), codecs::PlaneRole::kKeys),
        keys_(s.kv, s.rows),
        of_row_(static_cast<size_t>(s.kv.layers) * static_cast<size_t>(heads_),
                std::vector<uint16_t>(static_cast<size_t>(s.rows))) {}

  bool AddRows(int layer, const LayerView& part, kernels::ThreadPool& pool) override {
    if (!keys_.Add(part)) return true;
    const bool all = MakeAll(pool, heads_, [&](int64_t i) {
      const auto head = static_cast<int>(i);
      const std::vector<float> keys = keys_.Of(head, backend_);
      if (!std::ranges::all_of(keys, [](float x) { return std::isfinite(x); })) return false;
      KeyClusters clusters = ClusterKeys(keys, width(), stored(), backend_);
      of_row_[At(layer, head)] = std::move(clusters.of_row);
      std::vector<uint16_t> half(clusters.means.size());
      kernels::InlineStream stream;
      backend_.forward->to_half(stream,
                                {clusters.means.data(), half.data(), std::ssize(clusters.means)});
      return planes_.Encode(*backend_.codecs, layer, head, 0,
                            {half.data(), stored(), width(), width()});
    });
    keys_.Clear();
    return all;
  }

  kernels::CopyRows Units(int layer, int head) const override { return planes_.Rows(layer, head); }
  std::span<const uint16_t> Shared(int layer, int head) const override {
    return of_row_[At(layer, head)];
  }
  void Form(int, int, const float* q, float* to) const override { std::copy_n(q, width(), to); }

  uint64_t LayerBytes() const override {
    return static_cast<uint64_t>(heads_) * (MeansBytes() + RowsBytes());
  }
  // By head: its means, then the cluster of each row.
  void Save(int layer, std::span<std::byte> to) const override {
    CAIRN_CHECK(to.size() == LayerBytes());
    std::byte* at = to.data();
    for (int head = 0; head < heads_; ++head) {
      std::memcpy(at, planes_.Rows(layer, head).data, MeansBytes());
      std::memcpy(at + MeansBytes(), of_row_[At(layer, head)].data(), RowsBytes());
      at += MeansBytes() + RowsBytes();
    }
  }
  bool Load(int layer, std::span<const std::byte> from) override {
    if (from.size() != LayerBytes()) return false;
    std::vector<uint16_t> means(MeansBytes() / sizeof(uint16_t));
    const std::byte* at = from.data();
    for (int head = 0; head < heads_; ++head) {
      std::memcpy(means.data(), at, MeansBytes());
      std::vector<uint16_t>& of_row = of_row_[At(layer, head)];
      std::memcpy(of_row.data(), at + MeansBytes(), RowsBytes());
      at += MeansBytes() + RowsBytes();
      const auto in_range = [this](uint16_t cluster) { return cluster < stored(); };
      if (!std::ranges::all_of(of_row, in_range) ||
          !planes_.Encode(*backend_.codecs, layer, head, 0,
                          {means.data(), stored(), width(), width()})) {
        return false;
      }
    }
    return true;
  }

 private:
  size_t At(int layer, int head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(heads_) + static_cast<size_t>(head);
  }
  // The means of one head.
  size_t MeansBytes() const { return static_cast<size_t>(stored() * width()) * sizeof(uint16_t); }
  size_t RowsBytes() const { return static_cast<size_t>(units()) * sizeof(uint16_t); }

  const kernels::Backend& backend_;
  const int32_t heads_;
  IndexPlanes planes_;
  LayerKeys keys_;
  std::vector<std::vector<uint16_t>> of_row_;  // By layer and head.
};

}  // namespace

std::unique_ptr<RowIndex> MakeClusterIndex(const IndexShape& shape) {
  return std::make_unique<ClusterIndex>(shape);
}

}  // namespace cairn::worker
