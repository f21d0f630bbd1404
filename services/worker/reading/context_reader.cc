#include "services/worker/reading/context_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace cairn::worker {
namespace {

// Rows of the copy that a piece of work takes, and tokens of a part of exact rows.
constexpr int64_t kCopyPart = 1024;
constexpr int64_t kExactPart = 256;
constexpr float kNone = -std::numeric_limits<float>::infinity();

int64_t PartsOf(int64_t rows, int64_t part) { return (rows + part - 1) / part; }

// Its begin, rounded up to a cache line.
std::byte* Aligned(std::byte* p) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63});
}

}  // namespace

ContextReader::ContextReader(Setup setup)
    : s_(std::move(setup)),
      group_(s_.heads / s_.kv.kv_heads),
      units_(s_.index->units()),
      stored_(s_.index->stored()),
      row_bytes_(s_.kv.row_bytes()),
      scale_(1.0f / std::sqrt(static_cast<float>(s_.kv.head_dim))),
      reading_(*s_.backend->reading),
      forward_(*s_.backend->forward),
      layers_(static_cast<size_t>(s_.kv.layers)),
      logits_(static_cast<size_t>(s_.heads * units_)),
      stored_logits_(s_.index->Shared(0, 0).empty() ? 0 : static_cast<size_t>(s_.heads * stored_)),
      scores_(static_cast<size_t>(s_.kv.kv_heads * units_)),
      compact_(static_cast<size_t>(s_.kv.kv_heads)),
      staging_(s_.near.staging_bytes),
      staging_free_(kMostGathers, true) {
  const int64_t all = int64_t{s_.kv.layers} * s_.kv.kv_heads;
  heads_.reserve(static_cast<size_t>(all));
  for (int64_t i = 0; i < all; ++i) {
    heads_.push_back({WorkingSet(s_.near.set_rows, row_bytes_, s_.policy.victim), {}, {}});
  }
}

ContextReader::~ContextReader() {
  s_.source.reset();  // Nothing writes to the staging memory any more.
}

void ContextReader::AddSink(int layer, int head, int32_t row, const std::byte* k,
                            const std::byte* v) {
  HeadOf(layer, head).set.Add({&row, 1}, k, v, /*stay=*/true);
}

void ContextReader::BeginStep() {
  ++counters_.steps;
  for (Layer& layer : layers_) layer.expected = false;
  for (Head& head : heads_) head.set.NextStep();
}

void ContextReader::Prepare(kernels::ThreadPool& pool) {
  const int64_t dim = s_.kv.head_dim;
  const size_t reading = std::max(kernels::ReadingScratchBytes(group_, s_.index->width()),
                                  kernels::ReadingScratchBytes(group_, dim)) +
                         static_cast<size_t>(group_ * s_.index->width()) * sizeof(float) + 64;
  scratch_bytes_ = (std::max({reading, kernels::TopRowsScratchBytes(units_),
                              kernels::AttentionPartScratchBytes(kExactPart, group_, dim)}) +
                    128) /
                   64 * 64;
  scratch_.resize(scratch_bytes_ * static_cast<size_t>(pool.threads()) + 64);
}

void ContextReader::Rank(int layer, const float* q, kernels::ThreadPool& pool) {
  if (scratch_.empty()) Prepare(pool);
  const int64_t parts = PartsOf(stored_, kCopyPart);
  const bool shared = !stored_logits_.empty();
  const int64_t dim = s_.kv.head_dim;
  pool.ParallelFor(parts * s_.kv.kv_heads, [&](int64_t piece, int thread) {
    const int head = static_cast<int>(piece / parts);
    const int64_t width = s_.index->width();
    auto* const form = reinterpret_cast<float*>(Aligned(Scratch(thread)));
    for (int64_t g = 0; g < group_; ++g) {
      s_.index->Form(layer, head, q + (head * group_ + g) * dim, form + g * width);
    }
    kernels::RowLogitsArgs a;
    a.keys = s_.index->Units(layer, head);
    a.q = form;
    a.q_stride = width;
    a.group = group_;
    a.begin = piece % parts * kCopyPart;
    a.end = std::min(stored_, a.begin + kCopyPart);
    a.scale = scale_;
    a.logits = shared ? StoredLogitsOf(head) : LogitsOf(head);
    a.stride = stored_;
    a.scratch = Aligned(reinterpret_cast<std::byte*>(form + group_ * width));
    reading_.row_logits(stream_, a);
  });
  if (!shared) return;
  pool.ParallelFor(s_.kv.kv_heads,
                   [&](int64_t head, int) { Spread(layer, static_cast<int>(head)); });
}

void ContextReader::Spread(int layer, int head) {
  const std::span<const uint16_t> of_unit = s_.index->Shared(layer, head);
  for (int64_t g = 0; g < group_; ++g) {
    const float* const from = StoredLogitsOf(head) + g * stored_;
    float* const to = LogitsOf(head) + g * units_;
    for (int64_t u = 0; u < units_; ++u) to[u] = from[of_unit[static_cast<size_t>(u)]];
  }
}

void ContextReader::Choose(int layer, kernels::ThreadPool& pool) {
  pool.ParallelFor(s_.kv.kv_heads, [&](int64_t head, int thread) {
    ChooseHead(layer, static_cast<int>(head), thread);
  });
  layers_[static_cast<size_t>(layer)].expected = true;
  Gather(layer);
}

void ContextReader::ChooseHead(int layer, int head, int thread) {
  const int64_t unit_rows = s_.policy.unit_rows();
  Head& h = HeadOf(layer, head);
  std::vector<int32_t> units(
      static_cast<size_t>(std::min(units_, PartsOf(s_.near.step_rows, unit_rows))));
  kernels::TopRowsArgs a;
  a.logits = LogitsOf(head);
  a.stride = units_;
  a.group = group_;
  a.n = units_;
  a.count = std::ssize(units);
  a.scores = scores_.data() + head * units_;
  a.rows = units.data();
  a.scratch = Aligned(Scratch(thread));
  reading_.top_rows(stream_, a);
  if (s_.policy.kind == PolicyKind::kInfiniGen) DropFaintRows(head, &units);
  h.chosen.clear();
  for (const int32_t unit : units) {
    const int64_t end = std::min(s_.rows, (unit + 1) * unit_rows);
    for (int64_t row = unit * unit_rows; row < end; ++row) {
      h.chosen.push_back(static_cast<int32_t>(row));
    }
  }
}

void ContextReader::DropFaintRows(int head, std::vector<int32_t>* rows) const {
  const float* const logits = logits_.data() + head * group_ * units_;
  std::vector<float> least(static_cast<size_t>(group_));
  for (int64_t g = 0; g < group_; ++g) {
    const float* const x = logits + g * units_;
    least[static_cast<size_t>(g)] =
        *std::max_element(x, x + units_) - static_cast<float>(s_.policy.alpha);
  }
  std::erase_if(*rows, [&](int32_t row) {
    for (int64_t g = 0; g < group_; ++g) {
      if (logits[g * units_ + row] >= least[static_cast<size_t>(g)]) return false;
    }
    return true;
  });
}

void ContextReader::Limit(int head, std::vector<int32_t>* missing) const {
  int64_t most = s_.near.step_rows;
  if (s_.policy.step_bytes > 0) {
    const uint64_t of_head = s_.policy.step_bytes / (static_cast<uint64_t>(s_.kv.layers) *
                                                     static_cast<uint64_t>(s_.kv.kv_heads));
    most = std::min(most, static_cast<int64_t>(of_head / (2 * row_bytes_)));
  }
  if (std::ssize(*missing) <= most) return;
  const float* const scores = scores_.data() + head * units_;
  const int64_t unit = s_.policy.unit_rows();
  std::ranges::nth_element(*missing, missing->begin() + most, [&](int32_t a, int32_t b) {
    const float x = scores[a / unit], y = scores[b / unit];
    return x > y || (x == y && a < b);
  });
  missing->resize(static_cast<size_t>(most));
  std::ranges::sort(*missing);
}

void ContextReader::Gather(int layer) {
  Settle(layer);
  Layer& l = layers_[static_cast<size_t>(layer)];
  RowRequest request{.layer = layer, .heads = {}};
  for (int head = 0; head < s_.kv.kv_heads; ++head) {
    Head& h = HeadOf(layer, head);
    std::vector<int32_t> missing;
    h.set.Choose(h.chosen, &missing);
    counters_.chosen_rows += h.chosen.size();
    counters_.hit_rows += h.chosen.size() - missing.size();
    Limit(head, &missing);
    if (!missing.empty()) request.heads.push_back({head, std::move(missing), nullptr, nullptr});
  }
  // The gather of an earlier step is still under way: the far tier has enough to do.
  if (request.heads.empty() || l.gather != nullptr) return;
  auto place = std::ranges::find(staging_free_, true);
  if (place == staging_free_.end()) {
    // Late rows of other layers may have come by now. Their layers would take them only in the next
    // step, and no other layer could ask for any until then.
    for (int other = 0; other < s_.kv.layers; ++other) Settle(other);
    place = std::ranges::find(staging_free_, true);
  }
  if (place == staging_free_.end()) return;
  *place = false;
  l.staging = static_cast<int>(place - staging_free_.begin());
  const size_t plane = static_cast<size_t>(s_.near.step_rows) * row_bytes_;
  std::byte* to = staging_.data() +
                  static_cast<size_t>(l.staging) * static_cast<size_t>(s_.kv.kv_heads) * 2 * plane;
  for (RowRequest::Head& head : request.heads) {
    head.k = to;
    head.v = to + plane;
    to += 2 * plane;
    counters_.read_bytes += 2 * head.rows.size() * row_bytes_;
  }
  l.asked = request.heads;
  l.gather = s_.source->Gather(std::move(request));
}

void ContextReader::Settle(int layer) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  if (l.gather == nullptr) return;
  const RowGather::State state = l.gather->state();
  if (state == RowGather::State::kUnderWay) return;
  for (const RowRequest::Head& head : l.asked) {
    if (state == RowGather::State::kLost) {
      counters_.lost_rows += head.rows.size();
      continue;
    }
    counters_.useless_rows +=
        static_cast<uint64_t>(HeadOf(layer, head.head).set.Add(head.rows, head.k, head.v));
  }
  staging_free_[static_cast<size_t>(l.staging)] = true;
  l.gather = nullptr;
  l.asked.clear();
}

Status ContextReader::WaitForRows(int layer) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  const TimePoint deadline = s_.clock->Now() + s_.wait;
  while (l.gather != nullptr) {
    const RowGather::State state = l.gather->Wait(*s_.clock, deadline);
    if (state != RowGather::State::kHere) {
      return Errorf(StatusCode::kUnavailable,
                    "read policy {}: the rows of layer {} {}, and it has no copy to go on from",
                    s_.policy.card().name, layer,
                    state == RowGather::State::kLost ? "were lost" : "did not come in time");
    }
    Settle(layer);
  }
  return OkStatus();
}

void ContextReader::TakeStock(int layer) {
  for (int head = 0; head < s_.kv.kv_heads; ++head) {
    Head& h = HeadOf(layer, head);
    for (const int32_t row : h.chosen) counters_.late_rows += h.set.SlotOf(row) < 0 ? 1 : 0;
    if (s_.policy.has_copy()) {
      h.set.NoteRead();
      continue;
    }
    // The chosen rows, and the first ones, which always stay.
    h.read_slots.clear();
    const auto sink = static_cast<int32_t>(std::min(s_.policy.sink, s_.rows));
    for (int32_t row = 0; row < sink; ++row) h.read_slots.push_back(h.set.SlotOf(row));
    for (const int32_t row : h.chosen) {
      const int64_t slot = row < sink ? -1 : h.set.SlotOf(row);
      if (slot >= 0) h.read_slots.push_back(slot);
    }
    h.set.NoteRead(h.read_slots);
    std::vector<std::byte>& to = compact_[static_cast<size_t>(head)];
    const size_t count = h.read_slots.size();
    to.resize(2 * count * row_bytes_);
    for (size_t i = 0; i < count; ++i) {
      const auto slot = static_cast<size_t>(h.read_slots[i]);
      const std::byte* const k = h.set.planes() + slot * row_bytes_;
      std::memcpy(to.data() + i * row_bytes_, k, row_bytes_);
      std::memcpy(to.data() + (count + i) * row_bytes_,
                  k + static_cast<size_t>(h.set.capacity()) * row_bytes_, row_bytes_);
    }
  }
}

void ContextReader::Expect(int layer, const float* q, kernels::ThreadPool& pool) {
  Rank(layer, q, pool);
  Choose(layer, pool);
}

Status ContextReader::Attend(int layer, const float* q, const kernels::PagedKv& own,
                             int64_t own_tokens, float* out, kernels::ThreadPool& pool) {
  const bool chosen = layers_[static_cast<size_t>(layer)].expected;
  if (s_.policy.has_copy() || !chosen) Rank(layer, q, pool);
  if (!chosen) Choose(layer, pool);
  if (!s_.policy.has_copy()) CAIRN_RETURN_IF_ERROR(WaitForRows(layer));
  Settle(layer);
  TakeStock(layer);
  int64_t exact = 0;
  for (int head = 0; head < s_.kv.kv_heads; ++head) {
    const Head& h = HeadOf(layer, head);
    exact = std::max(exact, s_.policy.has_copy() ? h.set.size() : std::ssize(h.read_slots));
  }
  const Parts parts{.copy = s_.policy.has_copy() ? PartsOf(s_.rows, kCopyPart) : 0,
                    .exact = PartsOf(exact, kExactPart),
                    .own = PartsOf(own_tokens, kExactPart)};
  const int64_t dim = s_.kv.head_dim;
  part_acc_.resize(static_cast<size_t>(parts.all() * s_.heads * dim));
  part_max_.resize(static_cast<size_t>(parts.all() * s_.heads));
  part_sum_.resize(static_cast<size_t>(parts.all() * s_.heads));
  pool.ParallelFor(parts.all() * s_.kv.kv_heads, [&](int64_t piece, int thread) {
    AttendPart(layer, static_cast<int>(piece % s_.kv.kv_heads), piece / s_.kv.kv_heads, parts, q,
               own, own_tokens, thread);
  });
  forward_.attention_merge(stream_, {part_acc_.data(), part_max_.data(), part_sum_.data(), out,
                                     parts.all(), s_.heads, dim});
  return OkStatus();
}

void ContextReader::AttendPart(int layer, int head, int64_t part, const Parts& parts,
                               const float* q, const kernels::PagedKv& own, int64_t own_tokens,
                               int thread) {
  const int64_t place = part * s_.heads + head * group_;
  if (part < parts.copy) {
    kernels::AttendRowsArgs a;
    a.acc = part_acc_.data() + place * s_.kv.head_dim;
    a.max = part_max_.data() + place;
    a.sum = part_sum_.data() + place;
    a.scratch = Aligned(Scratch(thread));
    return AttendCopy(layer, head, part, a);
  }
  part -= parts.copy;
  if (part >= parts.exact) {
    const int64_t begin = (part - parts.exact) * kExactPart;
    return AttendRows(own, begin, std::min(own_tokens, begin + kExactPart), head, q, place, thread);
  }
  const Head& h = HeadOf(layer, head);
  const bool copy = s_.policy.has_copy();
  const std::vector<std::byte>& compact = compact_[static_cast<size_t>(head)];
  const int64_t rows = copy ? h.set.size() : std::ssize(h.read_slots);
  const std::byte* const planes = copy ? h.set.planes() : compact.data();
  kernels::PagedKv kv;
  kv.pages = &planes;
  kv.block_tokens = std::max<int64_t>(1, copy ? h.set.capacity() : rows);
  kv.head_dim = s_.kv.head_dim;
  kv.v_offset = static_cast<size_t>(kv.block_tokens) * row_bytes_;
  const int64_t begin = std::min(rows, part * kExactPart);
  AttendRows(kv, begin, std::min(rows, begin + kExactPart), head, q, place, thread);
}

void ContextReader::AttendCopy(int layer, int head, int64_t part,
                               const kernels::AttendRowsArgs& to) {
  kernels::AttendRowsArgs a = to;
  a.values = s_.index->Values(layer, head);
  a.logits = LogitsOf(head);
  a.stride = units_;
  a.group = group_;
  a.begin = part * kCopyPart;
  a.end = std::min(s_.rows, a.begin + kCopyPart);
  for (const int32_t row : HeadOf(layer, head).set.rows()) {
    if (row < a.begin || row >= a.end) continue;
    for (int64_t g = 0; g < group_; ++g) a.logits[g * units_ + row] = kNone;
  }
  reading_.attend_rows(stream_, a);
}

void ContextReader::AttendRows(const kernels::PagedKv& kv, int64_t begin, int64_t end, int head,
                               const float* q, int64_t place, int thread) {
  kernels::AttentionPartArgs a;
  a.kv = kv;
  a.q = q;
  a.kv_head = head;
  a.group = group_;
  a.begin = begin;
  a.end = end;
  a.scale = scale_;
  a.acc = part_acc_.data() + place * s_.kv.head_dim;
  a.max = part_max_.data() + place;
  a.sum = part_sum_.data() + place;
  a.scratch = Aligned(Scratch(thread));
  forward_.attention_part(stream_, a);
}

}  // namespace cairn::worker
