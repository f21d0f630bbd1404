#include "services/worker/compute/device/pass_lists.h"

#include <algorithm>

#include "services/worker/compute/device/arena.h"

namespace cairn::worker {

using kernels::batch::KvPlace;
using kernels::batch::PromptChunk;
using kernels::batch::SequenceKv;

namespace {

constexpr size_t kAlignment = 16;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t TableBytes(const DeviceRun& run) { return Aligned(run.slots.size() * sizeof(std::byte*)); }

}  // namespace

PassLists::Places PassLists::PlacesOf(std::span<const DeviceRun> runs, int64_t logits) {
  Places p;
  const auto take = [&p]<typename T>(Place<T>* place, int64_t count) {
    *place = {p.end, count};
    p.end += Aligned(static_cast<size_t>(count) * sizeof(T));
  };
  int64_t rows = 0, decoding = 0;
  for (const DeviceRun& run : runs) {
    rows += run.rows;
    decoding += run.decodes() ? 1 : 0;
  }
  take(&p.tokens, rows);
  take(&p.rows, rows);
  take(&p.sequences, decoding);
  take(&p.chunks, std::ssize(runs) - decoding);
  take(&p.logits_rows, logits);
  p.tables = p.end;
  for (const DeviceRun& run : runs) p.end += TableBytes(run);
  return p;
}

template <typename T>
const T* PassLists::Write(const Place<T>& place, const std::vector<T>& list) {
  CAIRN_CHECK(std::ssize(list) == place.count);
  if (!list.empty()) {
    std::memcpy(host_.bytes().data() + place.offset, list.data(), list.size() * sizeof(T));
  }
  return At<const T>(memory_.address(), place.offset);
}

int64_t PassLists::SplitsOfRun(const DeviceRun& run) const {
  const RaggedPrefix* const prefix = run.chunk->sequence->prefix().get();
  int64_t kept = 0;
  for (int layer = 0; prefix != nullptr && layer < kv_.layers; ++layer) {
    for (int head = 0; head < kv_.kv_heads; ++head) {
      kept = std::max(kept, prefix->rows(layer, head));
    }
  }
  return kernels::batch::SplitsOf(kept, run.tokens_after());
}

Status PassLists::Make(std::span<const DeviceRun> runs, std::span<const int32_t> logits_rows,
                       PrefixMirror& prefixes, device::Stream* stream) {
  const Places at = PlacesOf(runs, std::ssize(logits_rows));
  CAIRN_RETURN_IF_ERROR(memory_.Grow("lists of a pass", at.end, device_));
  if (host_.bytes().size() < at.end) {
    CAIRN_ASSIGN_OR_RETURN(host_, device_->AllocatePinned(memory_.bytes()));
  }
  std::vector<int32_t> tokens;
  std::vector<KvPlace> places;
  std::vector<SequenceKv> sequences;
  std::vector<PromptChunk> chunks;
  size_t table = at.tables;
  most_splits_ = 0;
  for (const DeviceRun& run : runs) {
    for (int64_t i = 0; i < run.rows; ++i) {
      const int64_t token = run.tokens_before() + i;
      const auto page = static_cast<size_t>(token / kv_.block_tokens);
      tokens.push_back(run.chunk->tokens[static_cast<size_t>(i)]);
      places.push_back({.page = At<std::byte>(run.slots[page]->address, 0),
                        .token = static_cast<int32_t>(token % kv_.block_tokens),
                        .position = static_cast<int32_t>(run.first_position + i)});
    }
    std::vector<const std::byte*> pages;
    for (const KvMirror::Slot* slot : run.slots) {
      pages.push_back(At<const std::byte>(slot->address, 0));
    }
    const Place<const std::byte*> place{table, std::ssize(pages)};
    SequenceKv kv{.pages = Write(place, pages), .prefix = nullptr, .tokens = run.tokens_before()};
    table += TableBytes(run);
    const auto& prefix = run.chunk->sequence->prefix();
    if (prefix != nullptr) {
      CAIRN_ASSIGN_OR_RETURN(kv.prefix, prefixes.Get(prefix, stream));
    }
    if (!run.decodes()) {
      chunks.push_back({kv, run.first_row, run.rows});
      continue;
    }
    kv.tokens = run.tokens_after();
    sequences.push_back(kv);
    most_splits_ = std::max(most_splits_, SplitsOfRun(run));
  }
  tokens_ = Write(at.tokens, tokens);
  places_ = Write(at.rows, places);
  sequences_ = Write(at.sequences, sequences);
  chunks_ = Write(at.chunks, chunks);
  logits_rows_ = Write(at.logits_rows, {logits_rows.begin(), logits_rows.end()});
  const device::CopyTask task{memory_.address(), reinterpret_cast<uint64_t>(host_.bytes().data()),
                              at.end};
  return stream->Copy("upload of a pass' lists", {&task, 1});
}

}  // namespace cairn::worker
