#pragma once
// Random keys and values of some sequences, in pages and units that lie in a random order, in a
// backend's memory and on the host for the reference.

#include <algorithm>
#include <numeric>

#include "tests/conformance/kernels/batch_case.h"

namespace cairn::kernels::testing {

// The shape of a sequence: tokens in its pages, and rows that a selection kept before them, by
// head.
struct SequenceShape {
  int64_t tokens = 0;
  std::vector<int64_t> kept = {};  // [kv_heads]; empty: there is no prefix.
};

// All sequences of one form. Two layers, of which the second one is tested; the other one, and what
// lies behind a sequence's last row, is NaN. Lives no longer than the device.
class BatchKv {
 public:
  BatchKv(Device& device, batch::KvForm form, std::vector<SequenceShape> shapes, std::mt19937* rng)
      : form_(Complete(form)), shapes_(std::move(shapes)) {
    int64_t pages = 0, units = 0;
    for (const SequenceShape& s : shapes_) {
      pages += PiecesOf(s.tokens, form_.block_tokens);
      for (const int64_t kept : s.kept) units += PiecesOf(kept, form_.unit_rows);
    }
    pages_ = Pool(pages, PageNumbers(), rng);
    units_ = Pool(units, 2 * UnitNumbers(), rng);
    for (const SequenceShape& s : shapes_) Fill(s, rng);
    std::vector<uint16_t> all = pages_.numbers;
    all.insert(all.end(), units_.numbers.begin(), units_.numbers.end());
    device_pages_ = device.In(all);
    device_units_ = device_pages_ + pages_.numbers.size();
    for (size_t i = 0; i < shapes_.size(); ++i) sequences_.push_back(Place(device, i));
  }

  const batch::KvForm& form() const { return form_; }
  // In which all pages and units lie.
  const std::byte* pool() const { return reinterpret_cast<const std::byte*>(device_pages_); }
  uint64_t pool_bytes() const { return 2 * (pages_.numbers.size() + units_.numbers.size()); }
  // In the device's memory, but for the struct itself.
  const batch::SequenceKv& sequence(size_t i) const { return sequences_[i]; }
  const SequenceShape& shape(size_t i) const { return shapes_[i]; }

  // The reference for one row: all heads' queries `q` at the first `tokens` tokens.
  std::vector<float> Attend(size_t sequence, int64_t tokens, const float* q, float scale) const {
    const int64_t dim = form_.head_dim;
    std::vector<float> out(static_cast<size_t>(form_.kv_heads * form_.group * dim));
    for (int64_t h = 0; h < form_.kv_heads; ++h) {
      AttentionArgs a;
      const std::vector<const std::byte*> pages = HostPages(sequence);
      const std::vector<const std::byte*> units = HostUnits(sequence, static_cast<size_t>(h));
      a.kv.pages = pages.data();
      a.kv.block_tokens = form_.block_tokens;
      a.kv.head_dim = a.prefix.head_dim = dim;
      a.kv.k_offset = form_.k_offset;
      a.kv.v_offset = form_.v_offset;
      a.kv.head_stride = form_.head_stride;
      a.prefix.pages = units.data();
      a.prefix.block_tokens = form_.unit_rows;
      a.prefix.v_offset = form_.unit_v_offset;
      if (!shapes_[sequence].kept.empty()) {
        a.prefix_rows = shapes_[sequence].kept[static_cast<size_t>(h)];
      }
      a.q = q;
      a.out = out.data();
      a.rows = 1;
      a.first_position = tokens - 1;
      a.kv_head = h;
      a.group = form_.group;
      a.scale = scale;
      InlineStream stream;
      ReferenceForwardKernels().attention_f32(stream, a);
    }
    return out;
  }

 private:
  // Pieces of equal size; `next` is taken in a random order.
  struct Pool {
    Pool() = default;
    Pool(int64_t pieces, int64_t piece_numbers, std::mt19937* rng)
        : numbers(static_cast<size_t>(pieces * piece_numbers), 0x7e00),
          order(static_cast<size_t>(pieces)) {
      std::iota(order.begin(), order.end(), int64_t{0});
      std::shuffle(order.begin(), order.end(), *rng);
    }
    std::vector<uint16_t> numbers;
    std::vector<int64_t> order;
    size_t next = 0;
  };

  static int64_t PiecesOf(int64_t rows, int64_t size) { return (rows + size - 1) / size; }
  static batch::KvForm Complete(batch::KvForm f) {
    f.head_stride = static_cast<size_t>(f.block_tokens) * static_cast<size_t>(f.head_dim) * 2;
    const size_t plane = f.head_stride * static_cast<size_t>(f.kv_heads);
    f.k_offset = 2 * plane;
    f.v_offset = 3 * plane;
    f.layer = 1;
    f.unit_v_offset = static_cast<size_t>(f.unit_rows) * static_cast<size_t>(f.head_dim) * 2;
    return f;
  }
  int64_t PageNumbers() const {
    return int64_t{4} * form_.kv_heads * form_.block_tokens * form_.head_dim;
  }
  int64_t UnitNumbers() const { return int64_t{form_.unit_rows} * form_.head_dim; }

  void FillRow(uint16_t* row, std::mt19937* rng) const {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    for (int64_t d = 0; d < form_.head_dim; ++d) row[d] = HalfOf(normal(*rng));
  }
  void Fill(const SequenceShape& s, std::mt19937* rng) {
    page_lists_.emplace_back();
    for (int64_t p = 0; p < PiecesOf(s.tokens, form_.block_tokens); ++p) {
      const int64_t page = pages_.order[pages_.next++];
      page_lists_.back().push_back(page);
      const int64_t rows = std::min<int64_t>(form_.block_tokens, s.tokens - p * form_.block_tokens);
      uint16_t* const numbers = pages_.numbers.data() + page * PageNumbers();
      for (const size_t plane : {form_.k_offset, form_.v_offset}) {
        for (int64_t h = 0; h < form_.kv_heads; ++h) {
          uint16_t* const head = numbers + (plane + static_cast<size_t>(h) * form_.head_stride) / 2;
          for (int64_t r = 0; r < rows; ++r) FillRow(head + r * form_.head_dim, rng);
        }
      }
    }
    unit_lists_.emplace_back();
    for (const int64_t kept : s.kept) {
      unit_lists_.back().emplace_back();
      for (int64_t u = 0; u < PiecesOf(kept, form_.unit_rows); ++u) {
        const int64_t unit = units_.order[units_.next++];
        unit_lists_.back().back().push_back(unit);
        const int64_t rows = std::min<int64_t>(form_.unit_rows, kept - u * form_.unit_rows);
        uint16_t* const numbers = units_.numbers.data() + unit * 2 * UnitNumbers();
        for (int64_t r = 0; r < rows; ++r) {
          FillRow(numbers + r * form_.head_dim, rng);
          FillRow(numbers + UnitNumbers() + r * form_.head_dim, rng);
        }
      }
    }
  }

  static std::vector<const std::byte*> Addresses(const uint16_t* base, int64_t piece_numbers,
                                                 const std::vector<int64_t>& pieces) {
    std::vector<const std::byte*> list;
    for (const int64_t piece : pieces) {
      list.push_back(reinterpret_cast<const std::byte*>(base + piece * piece_numbers));
    }
    return list;
  }
  std::vector<const std::byte*> HostPages(size_t i) const {
    return Addresses(pages_.numbers.data(), PageNumbers(), page_lists_[i]);
  }
  std::vector<const std::byte*> HostUnits(size_t i, size_t head) const {
    if (unit_lists_[i].empty()) return {};
    return Addresses(units_.numbers.data(), 2 * UnitNumbers(), unit_lists_[i][head]);
  }
  batch::SequenceKv Place(Device& device, size_t i) const {
    batch::SequenceKv s;
    s.pages = device.In(Addresses(device_pages_, PageNumbers(), page_lists_[i]));
    s.tokens = shapes_[i].tokens;
    if (shapes_[i].kept.empty()) return s;
    std::vector<batch::KeptRows> kept(2 * shapes_[i].kept.size());
    for (size_t h = 0; h < shapes_[i].kept.size(); ++h) {
      kept[shapes_[i].kept.size() + h] = {
          device.In(Addresses(device_units_, 2 * UnitNumbers(), unit_lists_[i][h])),
          shapes_[i].kept[h]};
    }
    s.prefix = device.In(kept);
    return s;
  }

  const batch::KvForm form_;
  const std::vector<SequenceShape> shapes_;
  Pool pages_, units_;
  std::vector<std::vector<int64_t>> page_lists_;               // [sequence]
  std::vector<std::vector<std::vector<int64_t>>> unit_lists_;  // [sequence][kv_heads]
  const uint16_t* device_pages_ = nullptr;
  const uint16_t* device_units_ = nullptr;
  std::vector<batch::SequenceKv> sequences_;
};

}  // namespace cairn::kernels::testing
