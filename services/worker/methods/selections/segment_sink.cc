#include "services/worker/methods/selections/segment_sink.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "cairn/common/hash.h"
#include "common/log/log.h"

namespace cairn::worker {

SegmentSink::SegmentSink(const KvLayout& kv, const KvCodec& codec, uint32_t blocks,
                         const Options& options)
    : kv_(kv),
      codec_(codec),
      blocks_(blocks),
      options_(options),
      heads_(static_cast<size_t>(blocks) * static_cast<size_t>(kv.layers) *
             static_cast<size_t>(kv.kv_heads)),
      missing_(blocks, static_cast<uint32_t>(kv.layers * kv.kv_heads)),
      reasons_(blocks, MissReason::kNone) {}

Status SegmentSink::OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) {
  const std::vector<std::byte>& copy = copies_.emplace_back(data.begin(), data.end());
  return Take(slice, copy);
}

Status SegmentSink::OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                                std::shared_ptr<const client::LentHold> hold) {
  // Slices of one part come in a row and share their hold.
  if (hold != nullptr && (holds_.empty() || holds_.back() != hold)) holds_.push_back(hold);
  return Take(slice, data);  // Rows are decoded from there, which is no reading in place.
}

Status SegmentSink::Take(const client::SliceInfo& slice, std::span<const std::byte> data) {
  const uint32_t begin = slice.part.head_begin;
  const uint32_t end = slice.part.head_end;
  if (slice.codec != codec_.id() || slice.block >= blocks_ ||
      slice.layer >= static_cast<uint32_t>(kv_.layers) || begin >= end ||
      end > static_cast<uint32_t>(kv_.kv_heads)) {
    return Errorf(
        StatusCode::kDataLoss,
        "slice of block {}, layer {}, heads {} to {}, codec {}: the namespace's layout has "
        "no such slice",
        slice.block, slice.layer, begin, end, static_cast<int>(slice.codec));
  }
  const auto parsed = ParseSelectedSlice(
      codec_,
      {.layer = static_cast<int>(slice.layer),
       .first_position = uint64_t{slice.block} * static_cast<uint64_t>(kv_.block_tokens),
       .heads = end - begin,
       .block_tokens = static_cast<uint32_t>(kv_.block_tokens)},
      data);
  if (!parsed.ok()) {
    log::Warn("slice_not_decoded", {{"error", ToString(parsed.status())}});
    OnBlockFailed(slice.block, MissReason::kCorrupt);
    return OkStatus();
  }
  Stored stored{.bytes = data, .xxh3 = slice.xxh3, .block = slice.block, .layer = slice.layer};
  for (uint32_t head = begin; head < end; ++head) {
    auto& cell = heads_[Cell(slice.block, slice.layer, head)];
    if (cell) continue;  // Parts may overlap; the first counts.
    cell = (*parsed)[head - begin];
    --missing_[slice.block];
    stored.heads.push_back(head);
  }
  if (!stored.heads.empty()) slices_.push_back(std::move(stored));
  bytes_.Of(slice.tier) += data.size();
  return OkStatus();
}

void SegmentSink::OnBlockFailed(uint32_t block, client::MissReason reason) {
  if (block < blocks_ && reasons_[block] == MissReason::kNone) reasons_[block] = reason;
}

uint32_t SegmentSink::CompletePrefix() const {
  uint32_t block = 0;
  while (block < blocks_ && missing_[block] == 0 && reasons_[block] == MissReason::kNone) ++block;
  return block;
}

std::vector<int64_t> SegmentSink::Rows(uint32_t blocks) const {
  const auto heads = static_cast<size_t>(kv_.layers) * static_cast<size_t>(kv_.kv_heads);
  std::vector<int64_t> rows(heads);
  for (size_t i = 0; i < blocks * heads; ++i) rows[i % heads] += heads_[i]->place.rows;
  return rows;
}

std::optional<uint32_t> SegmentSink::Decode(uint32_t blocks, kernels::ThreadPool& pool,
                                            RaggedBuilder* builder) const {
  // Raw rows are copied: a way through the device would bring the same bytes.
  if (options_.loader == nullptr || codec_.raw() || codec_.RowsForm() == nullptr) {
    return DecodeOnCpu(blocks, pool, builder);
  }
  return DecodeOnDevice(blocks, builder);
}

std::optional<uint32_t> SegmentSink::DecodeOnDevice(uint32_t blocks, RaggedBuilder* builder) const {
  std::vector<const Stored*> order;  // A head's rows are appended block by block.
  for (const Stored& stored : slices_) {
    if (stored.block < blocks) order.push_back(&stored);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Stored* a, const Stored* b) { return a->block < b->block; });
  std::vector<SliceLoader::RowsSlice> slices;
  for (const Stored* stored : order) {
    SliceLoader::RowsSlice& slice = slices.emplace_back();
    slice.host = stored->bytes.data();
    slice.bytes = stored->bytes.size();
    slice.xxh3 = stored->xxh3;
    slice.layer = static_cast<int32_t>(stored->layer);
    for (const uint32_t head : stored->heads) {
      const SelectedHead& from = *heads_[Cell(stored->block, stored->layer, head)];
      if (from.place.rows == 0) continue;
      slice.heads.push_back({.offset = static_cast<uint64_t>(from.bytes.data() - slice.host),
                             .bytes = from.bytes.size(),
                             .rows = static_cast<int32_t>(from.place.rows),
                             .sequence_start = from.place.sequence_start});
    }
  }
  std::optional<uint32_t> bad;
  uint64_t bytes_in = 0, bytes_out = 0;
  const TimePoint begin = options_.clock->Now();
  options_.loader->LoadRows(
      *codec_.RowsForm(), slices,
      [&](size_t i, SliceLoader::Outcome outcome, std::span<const uint16_t> rows) {
        if (bad) return;
        const Stored& stored = *order[i];
        if (outcome != SliceLoader::Outcome::kGood) {
          if (!DecodeStored(stored, builder)) bad = stored.block;
          return;
        }
        bytes_out += rows.size_bytes();
        for (const uint32_t head : stored.heads) {
          const SelectedHead& from = *heads_[Cell(stored.block, stored.layer, head)];
          const auto plane = static_cast<size_t>(from.place.rows * kv_.head_dim);
          bytes_in += from.bytes.size();
          builder->Append(static_cast<int>(stored.layer), static_cast<int>(head), rows.data(),
                          rows.data() + plane, from.place.rows);
          rows = rows.subspan(2 * plane);
        }
      });
  codec_.CountDecoded(codec_.id(), bytes_in, bytes_out, options_.clock->Now() - begin);
  return bad;
}

bool SegmentSink::DecodeStored(const Stored& stored, RaggedBuilder* builder) const {
  // The client has verified the bytes, but the node's memory may have changed since.
  if (Xxh3(stored.bytes) != stored.xxh3) return false;
  const auto plane = static_cast<size_t>(kv_.block_tokens) * static_cast<size_t>(kv_.head_dim);
  std::vector<uint16_t> rows(2 * plane);
  KvCodec::Scratch scratch;
  for (const uint32_t head : stored.heads) {
    const SelectedHead& from = *heads_[Cell(stored.block, stored.layer, head)];
    if (from.place.rows == 0) continue;
    const Status status =
        codec_.DecodeRows(from.place, from.bytes, rows.data(), rows.data() + plane, scratch);
    if (!status.ok()) {
      log::Warn("slice_not_decoded", {{"error", ToString(status)}});
      return false;
    }
    builder->Append(static_cast<int>(stored.layer), static_cast<int>(head), rows.data(),
                    rows.data() + plane, from.place.rows);
  }
  return true;
}

std::optional<uint32_t> SegmentSink::DecodeOnCpu(uint32_t blocks, kernels::ThreadPool& pool,
                                                 RaggedBuilder* builder) const {
  std::atomic<uint32_t> first_bad{blocks};
  struct Work {
    std::vector<uint16_t> rows;
    KvCodec::Scratch scratch;
  };
  std::vector<Work> work(static_cast<size_t>(pool.threads()));
  const auto per_head = static_cast<size_t>(kv_.block_tokens) * static_cast<size_t>(kv_.head_dim);
  pool.ParallelFor(int64_t{kv_.layers} * kv_.kv_heads, [&](int64_t piece, int thread) {
    const auto layer = static_cast<uint32_t>(piece / kv_.kv_heads);
    const auto head = static_cast<uint32_t>(piece % kv_.kv_heads);
    Work& mine = work[static_cast<size_t>(thread)];
    mine.rows.resize(2 * per_head);
    uint16_t* k = mine.rows.data();
    uint16_t* v = k + per_head;
    for (uint32_t block = 0; block < blocks; ++block) {
      const SelectedHead& from = *heads_[Cell(block, layer, head)];
      if (from.place.rows == 0) continue;
      if (!codec_.DecodeRows(from.place, from.bytes, k, v, mine.scratch).ok()) {
        uint32_t bad = first_bad.load(std::memory_order_relaxed);
        while (block < bad && !first_bad.compare_exchange_weak(bad, block)) {
        }
        return;
      }
      builder->Append(static_cast<int>(layer), static_cast<int>(head), k, v, from.place.rows);
    }
  });
  if (first_bad.load() == blocks) return std::nullopt;
  return first_bad.load();
}

bool SegmentSink::Intact() const {
  return std::all_of(holds_.begin(), holds_.end(), [](const auto& hold) { return hold->Pinned(); });
}

}  // namespace cairn::worker
