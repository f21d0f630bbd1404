#include "cairn/kernels/packed_matrix.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace cairn::kernels {
namespace {

uint16_t ReadHalf(const std::byte* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return h;
}

// 32 columns of one row: numbers in column order, scales as they will be stored.
struct StepValues {
  int8_t q[32];
  // d (of the first half, of the second half), m: binary16 bits or float32.
  uint16_t half_scale[3];
  float wide_scale[3];
};

void ReadNibbles(const std::byte* qs, int8_t* q) {
  for (int i = 0; i < 16; ++i) {
    const auto byte = static_cast<uint8_t>(qs[i]);
    q[i] = static_cast<int8_t>(byte & 15);
    q[16 + i] = static_cast<int8_t>(byte >> 4);
  }
}

void AddFifthBits(const std::byte* high, int offset, int8_t* q) {
  uint32_t bits;
  std::memcpy(&bits, high, 4);
  for (int i = 0; i < 32; ++i) {
    q[i] = static_cast<int8_t>((q[i] | static_cast<int>((bits >> i) & 1) << 4) - offset);
  }
}

// Scale and minimum of group g of a K-quant block: six bits each, see weight_types.h.
void KScales(const std::byte* scales, int g, int* scale, int* min) {
  const auto at = [scales](int i) { return static_cast<int>(scales[i]); };
  if (g < 4) {
    *scale = at(g) & 63;
    *min = at(g + 4) & 63;
  } else {
    *scale = (at(g + 4) & 15) | (at(g - 4) >> 6) << 4;
    *min = (at(g + 4) >> 4) | (at(g) >> 6) << 4;
  }
}

void ReadK45(const std::byte* block, int g, bool fifth, StepValues* v) {
  int scale, min;
  KScales(block + 4, g, &scale, &min);
  v->wide_scale[0] = HalfToFloat(ReadHalf(block)) * static_cast<float>(scale);
  v->wide_scale[2] = -(HalfToFloat(ReadHalf(block + 2)) * static_cast<float>(min));
  const std::byte* high = block + 16;
  const std::byte* qs = block + (fifth ? 48 : 16) + 32 * (g / 2);
  for (int i = 0; i < 32; ++i) {
    const int byte = static_cast<int>(qs[i]);
    int q = g % 2 == 0 ? byte & 15 : byte >> 4;
    if (fifth) q |= ((static_cast<int>(high[i]) >> g) & 1) << 4;
    v->q[i] = static_cast<int8_t>(q);
  }
}

void ReadK6(const std::byte* block, int step, StepValues* v) {
  const int half = step / 4;
  const int g = step % 4;
  const std::byte* low = block + 64 * half + 32 * (g % 2);
  const std::byte* high = block + 128 + 32 * half;
  const auto* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float d = HalfToFloat(ReadHalf(block + 208));
  for (int i = 0; i < 2; ++i) {
    v->wide_scale[i] = d * static_cast<float>(scales[8 * half + 2 * g + i]);
  }
  for (int i = 0; i < 32; ++i) {
    const int byte = static_cast<int>(low[i]);
    const int nibble = g < 2 ? byte & 15 : byte >> 4;
    const int two = (static_cast<int>(high[i]) >> (2 * g)) & 3;
    v->q[i] = static_cast<int8_t>((nibble | two << 4) - 32);
  }
}

void ReadStep(WeightType type, const std::byte* row, int64_t step, StepValues* v) {
  const int64_t blocks_ahead = step * kStepColumns / BlockElements(type);
  const std::byte* block = row + blocks_ahead * BlockBytes(type);
  const int part = static_cast<int>(step % 8);
  switch (type) {
    case WeightType::kQ8_0:
      v->half_scale[0] = ReadHalf(block);
      std::memcpy(v->q, block + 2, 32);
      return;
    case WeightType::kQ4_0:
      v->half_scale[0] = ReadHalf(block);
      return ReadNibbles(block + 2, v->q);
    case WeightType::kQ4_1:
      v->half_scale[0] = ReadHalf(block);
      v->half_scale[2] = ReadHalf(block + 2);
      return ReadNibbles(block + 4, v->q);
    case WeightType::kQ5_0:
      v->half_scale[0] = ReadHalf(block);
      ReadNibbles(block + 6, v->q);
      return AddFifthBits(block + 2, 16, v->q);
    case WeightType::kQ5_1:
      v->half_scale[0] = ReadHalf(block);
      v->half_scale[2] = ReadHalf(block + 2);
      ReadNibbles(block + 8, v->q);
      return AddFifthBits(block + 4, 0, v->q);
    case WeightType::kQ4_K:
      return ReadK45(block, part, false, v);
    case WeightType::kQ5_K:
      return ReadK45(block, part, true, v);
    case WeightType::kQ6_K:
      return ReadK6(block, part, v);
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      return;
  }
}

void WriteNumbers(PackedKind kind, const int8_t* q, int lane, std::byte* step) {
  if (kind == PackedKind::kNibble) {
    for (int j = 0; j < 4; ++j) {
      for (int b = 0; b < 4; ++b) {
        step[j * 64 + lane * 4 + b] =
            static_cast<std::byte>((q[8 * j + b] & 15) | (q[8 * j + 4 + b] & 15) << 4);
      }
    }
  } else {
    for (int j = 0; j < 8; ++j) std::memcpy(step + j * 64 + lane * 4, q + 4 * j, 4);
  }
}

}  // namespace

size_t PackedFormat::number_bytes_per_step() const {
  switch (kind) {
    case PackedKind::kNibble:
      return 4 * 64;
    case PackedKind::kByte:
      return 8 * 64;
    case PackedKind::kHalf:
    case PackedKind::kBfloat16:
      return kStepColumns * kPanelRows * 2;
    case PackedKind::kFloat:
      return kStepColumns * kPanelRows * 4;
  }
  return 0;
}

size_t PackedFormat::scale_bytes_per_step() const {
  if (group == 0) return 0;
  const size_t rows = (group == 16 ? 2 : 1) + (has_min ? 1 : 0);
  return rows * kPanelRows * (wide ? 4 : 2);
}

PackedFormat FormatOf(WeightType type) {
  using enum PackedKind;
  switch (type) {
    case WeightType::kF32:
      return {.kind = kFloat};
    case WeightType::kF16:
      return {.kind = kHalf};
    case WeightType::kBF16:
      return {.kind = kBfloat16};
    case WeightType::kQ8_0:
    case WeightType::kQ5_0:
      return {.kind = kByte, .group = 32};
    case WeightType::kQ4_0:
      return {.kind = kNibble, .group = 32, .offset = 8};
    case WeightType::kQ4_1:
      return {.kind = kNibble, .group = 32, .has_min = true};
    case WeightType::kQ5_1:
      return {.kind = kByte, .group = 32, .has_min = true};
    case WeightType::kQ4_K:
      return {.kind = kNibble, .group = 32, .has_min = true, .wide = true};
    case WeightType::kQ5_K:
      return {.kind = kByte, .group = 32, .has_min = true, .wide = true};
    case WeightType::kQ6_K:
      return {.kind = kByte, .group = 16, .wide = true};
  }
  return {};
}

void PackedMatrix::Free::operator()(std::byte* p) const {
  ::operator delete[](p, std::align_val_t{64});
}

PackedView::PackedView(WeightType type, int64_t rows, int64_t cols)
    : type_(type), format_(FormatOf(type)), rows_(rows), cols_(cols) {
  const auto steps_count = static_cast<size_t>(steps());
  scales_offset_ = steps_count * format_.number_bytes_per_step();
  panel_bytes_ = (scales_offset_ + steps_count * format_.scale_bytes_per_step() + 63) / 64 * 64;
}

PackedMatrix::PackedMatrix(WeightType type, int64_t rows, int64_t cols)
    : PackedView(type, rows, cols) {
  memory_.reset(static_cast<std::byte*>(::operator new[](bytes() + 64, std::align_val_t{64})));
  Place(memory_.get());
}

void PackedMatrix::PackPanel(int64_t panel, const std::byte* const* rows) {
  std::byte* numbers_at = memory_.get() + static_cast<size_t>(panel) * panel_bytes();
  std::byte* scales_at = numbers_at + scales_offset();
  std::memset(numbers_at, 0, panel_bytes());
  for (int lane = 0; lane < kPanelRows; ++lane) {
    if (rows[lane] == nullptr) continue;
    if (format().group == 0) {
      const auto size = static_cast<size_t>(BlockBytes(type()));
      for (int64_t c = 0; c < cols(); ++c) {
        std::memcpy(numbers_at + static_cast<size_t>(c * kPanelRows + lane) * size,
                    rows[lane] + static_cast<size_t>(c) * size, size);
      }
      continue;
    }
    for (int64_t s = 0; s < steps(); ++s) {
      StepValues v;
      ReadStep(type(), rows[lane], s, &v);
      WriteNumbers(format().kind, v.q, lane,
                   numbers_at + static_cast<size_t>(s) * format().number_bytes_per_step());
      // Order of scale rows: d, d of the second half (groups of 16), m.
      std::byte* out = scales_at + static_cast<size_t>(s) * format().scale_bytes_per_step();
      const bool present[3] = {true, format().group == 16, format().has_min};
      for (int i = 0; i < 3; ++i) {
        if (!present[i]) continue;
        if (format().wide) {
          std::memcpy(out + lane * 4, &v.wide_scale[i], 4);
          out += kPanelRows * 4;
        } else {
          std::memcpy(out + lane * 2, &v.half_scale[i], 2);
          out += kPanelRows * 2;
        }
      }
    }
  }
}

}  // namespace cairn::kernels
