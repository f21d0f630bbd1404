#pragma once
// Numbers of a segment by layer, KV head and token.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::selections {

// [layers][heads][tokens], zeros at first. Threads may write different heads at the same time.
template <typename T>
class Grid {
 public:
  Grid(int32_t layers, int32_t heads, int64_t tokens)
      : layers_(layers),
        heads_(heads),
        tokens_(static_cast<size_t>(tokens)),
        all_(static_cast<size_t>(layers) * static_cast<size_t>(heads) * tokens_) {}

  int32_t layers() const { return layers_; }
  int32_t heads() const { return heads_; }
  int64_t tokens() const { return static_cast<int64_t>(tokens_); }

  std::span<T> All() { return all_; }
  std::span<T> Layer(int32_t layer) {
    const size_t size = static_cast<size_t>(heads_) * tokens_;
    return std::span(all_).subspan(static_cast<size_t>(layer) * size, size);
  }
  std::span<T> Head(int32_t layer, int32_t head) {
    return Layer(layer).subspan(static_cast<size_t>(head) * tokens_, tokens_);
  }
  std::span<const T> Layer(int32_t layer) const { return const_cast<Grid*>(this)->Layer(layer); }
  std::span<const T> Head(int32_t layer, int32_t head) const {
    return const_cast<Grid*>(this)->Head(layer, head);
  }

 private:
  int32_t layers_;
  int32_t heads_;
  size_t tokens_;
  std::vector<T> all_;
};

using Scores = Grid<float>;   // Larger: keep.
using Marks = Grid<uint8_t>;  // 1: stays.

}  // namespace cairn::selections
