#pragma once
// Weights in the one order that all matrix kernels read.
//
// A panel holds 16 rows of the matrix (16 outputs). Inside a panel a SIMD lane is a row, so that no
// kernel adds across lanes and the result does not depend on the vector width. Quantised weights
// stay quantised: same bits per weight, other order, so a decode step reads as few bytes as the
// file has. Rows missing in the last panel are zero; so are columns missing in the last step.
//
// A step is 32 columns. In a panel all steps' numbers come first, then all steps' scales:
//
//   nibble   64 B x 4: lane n, byte b of vector j holds columns 8j+b (low) and 8j+4+b (high)
//   byte     64 B x 8: lane n, byte b of vector j holds column 4j+b, signed
//   half, bfloat16, float   [32][16] numbers
//   scales   d[16] (twice for groups of 16), then m[16] where there is a minimum;
//            binary16, or float32 where a scale is a product (K-quants)
//
// weight = d * (q - offset) + m

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cairn/kernels/weight_types.h"

namespace cairn::kernels {

inline constexpr int64_t kPanelRows = 16;
inline constexpr int64_t kStepColumns = 32;

enum class PackedKind : uint8_t { kNibble, kByte, kHalf, kBfloat16, kFloat };

struct PackedFormat {
  PackedKind kind = PackedKind::kFloat;
  int group = 0;   // Columns that share a scale: 32 or 16. 0: no scales.
  int offset = 0;  // Subtracted from q; only of nibbles.
  bool has_min = false;
  bool wide = false;  // Scales are float32.

  size_t number_bytes_per_step() const;
  size_t scale_bytes_per_step() const;
};

PackedFormat FormatOf(WeightType type);

// A packed matrix in somebody's memory: what operations take. A value, cheap to copy; the numbers
// must outlive it.
class PackedView {
 public:
  PackedView() = default;

  WeightType type() const { return type_; }
  const PackedFormat& format() const { return format_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t panels() const { return (rows_ + kPanelRows - 1) / kPanelRows; }
  int64_t steps() const { return (cols_ + kStepColumns - 1) / kStepColumns; }
  size_t bytes() const { return panel_bytes_ * static_cast<size_t>(panels()); }

  // bytes() of them, 64-byte aligned.
  const std::byte* data() const { return data_; }
  // The same matrix, where a copy of the bytes lies.
  PackedView At(const std::byte* data) const {
    PackedView copy = *this;
    copy.Place(data);
    return copy;
  }

  // Numbers and scales of a panel, 64-byte aligned.
  const std::byte* numbers(int64_t panel) const {
    return data_ + static_cast<size_t>(panel) * panel_bytes_;
  }
  const std::byte* scales(int64_t panel) const { return numbers(panel) + scales_offset_; }

 protected:
  PackedView(WeightType type, int64_t rows, int64_t cols);

  void Place(const std::byte* data) { data_ = data; }
  size_t panel_bytes() const { return panel_bytes_; }
  size_t scales_offset() const { return scales_offset_; }

 private:
  WeightType type_ = WeightType::kF32;
  PackedFormat format_;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  size_t panel_bytes_ = 0;
  size_t scales_offset_ = 0;
  const std::byte* data_ = nullptr;
};

// A matrix in the host's memory. Immutable once packed. Movable.
class PackedMatrix : public PackedView {
 public:
  PackedMatrix() = default;
  // Unpacked memory for a matrix; cols must be a multiple of BlockElements(type).
  PackedMatrix(WeightType type, int64_t rows, int64_t cols);

  // Fills a panel from the 16 rows at `rows` (RowBytes(type, cols) bytes each; null: a zero row).
  // Different panels may be packed by different threads.
  void PackPanel(int64_t panel, const std::byte* const* rows);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };

  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace cairn::kernels
