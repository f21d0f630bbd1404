#include "clients/cpp/src/local/local_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "clients/cpp/src/local/local_session.h"
#include "clients/cpp/src/local/place_header.h"
#include "common/memory/bulk_copy.h"
#include "protocol/shm/decode.h"

namespace cairn::client::local {
namespace {

// Rows that are gathered before they are given out.
constexpr size_t kBatchBytes = 256 << 10;
// The longest wait at the node, so that a cancelled fetch ends soon.
constexpr Duration kWaitForRows = std::chrono::milliseconds(20);

// Calls use(first, count, offset, bytes) for each run of kHashedRows rows of a head, in order of
// planes.
template <typename Use>
void ForEachHashedRun(const SliceRows& rows, uint32_t head, Use&& use) {
  for (const SliceRows::PlaneRows& plane : rows.planes()) {
    for (uint32_t first = 0; first < rows.block_tokens(); first += LocalRows::kHashedRows) {
      const uint32_t count = std::min(LocalRows::kHashedRows, rows.block_tokens() - first);
      const SliceRows::Place begin = rows.At(plane, head, first);
      const SliceRows::Place last = rows.At(plane, head, first + count - 1);
      use(plane, first, count, begin.offset, last.offset + last.bytes - begin.offset);
    }
  }
}

}  // namespace

// The state that the steps of one call share. Used by one thread.
class LocalRows::Call {
 public:
  LeasePin& pin;
  const RowsWanted& wanted;
  const FetchOptions& options;
  const TimePoint deadline;
  const Clock& clock;
  TimePoint progress;
  RowReport report = {};
  std::vector<std::pair<size_t, MissReason>> failed = {};  // Not told yet.

  Status CheckTime() const {
    if (options.cancel.stop_requested()) {
      return Errorf(StatusCode::kCancelled, "fetch: cancelled by the caller");
    }
    const TimePoint now = clock.Now();
    if (now < deadline && now < progress) return OkStatus();
    return Errorf(StatusCode::kDeadlineExceeded, "fetch: {}",
                  now >= deadline ? "it took longer than its deadline" : "no new rows in time");
  }
};

RowReport LocalRows::Read(LeasePin& pin, uint32_t blocks, const RowsWanted& wanted, RowSink& sink,
                          const FetchOptions& options, TimePoint deadline) {
  const Clock& clock = pin.session()->clock();
  Call call{.pin = pin,
            .wanted = wanted,
            .options = options,
            .deadline = deadline,
            .clock = clock,
            .progress = clock.Now() + options.progress};
  RowReport& report = call.report;
  Batch batch;
  // Until it is done, everything from batch.next on is left.
  const auto ended = [&](Status status) {
    report.status = std::move(status);
    for (const Batch::Group& group : batch.groups) report.rest.push_back(group.number);
    for (size_t i = batch.next; i < wanted.groups.size(); ++i) report.rest.push_back(i);
    std::sort(report.rest.begin(), report.rest.end());
    return std::move(report);
  };
  {
    MutexLock lock(mu_);
    blocks_.resize(blocks);
    if (Status located = Locate(call); !located.ok()) return ended(std::move(located));
  }
  while (batch.next < wanted.groups.size()) {
    {
      MutexLock lock(mu_);
      Gather(call, &batch);
    }
    // The copied bytes were right if the session lives now.
    if (!pin.session()->Alive()) {
      return ended(Errorf(StatusCode::kUnavailable, "same-node session: the node has ended it"));
    }
    for (const auto& [group, reason] : std::exchange(call.failed, {})) {
      sink.OnRowsFailed(group, reason);
    }
    const std::vector<Batch::Group> ready = std::exchange(batch.groups, {});
    for (const Batch::Group& group : ready) {
      report.counts.rows += wanted.groups[group.number].rows();
      report.counts.bytes[static_cast<size_t>(group.tier)] += group.end - group.begin;
      const Status taken =
          sink.OnRows(group.number, group.info,
                      std::span(batch.bytes).subspan(group.begin, group.end - group.begin));
      if (!taken.ok()) {
        report.status = taken;
        report.rest.clear();
        return std::move(report);
      }
      report.node_answers = true;
    }
    batch.bytes.clear();
    call.progress = clock.Now() + options.progress;
    if (Status time = call.CheckTime(); !time.ok()) return ended(std::move(time));
  }
  return ended(OkStatus());
}

Status LocalRows::Locate(Call& call) {
  CAIRN_RETURN_IF_ERROR(call.CheckTime());
  LeasePin& pin = call.pin;
  const auto unknown = [&](const RowGroup& group) {
    mu_.AssertHeld();
    return blocks_[group.block].state == Block::State::kUnknown;
  };
  const std::span<const RowGroup> groups = call.wanted.groups;
  auto first = std::find_if(groups.begin(), groups.end(), unknown);
  if (first == groups.end()) return OkStatus();
  // The places that the match returned.
  CAIRN_RETURN_IF_ERROR(Take(call, pin.places(), 0, pin.located()));
  for (;;) {
    first = std::find_if(groups.begin(), groups.end(), unknown);
    if (first == groups.end()) return OkStatus();
    CAIRN_RETURN_IF_ERROR(call.CheckTime());
    const auto last = std::find_if(groups.rbegin(), groups.rend(), unknown);
    const TimePoint until = std::min(call.deadline, call.progress);
    const Duration left = until - call.clock.Now();
    CAIRN_ASSIGN_OR_RETURN(const LocalSession::Located located,
                           pin.session()->Locate(pin.lease(), first->block, last->block + 1,
                                                 std::min(kWaitForRows, left), until));
    CAIRN_RETURN_IF_ERROR(Take(call, located.places, first->block, first->block + located.located));
  }
}

Status LocalRows::Take(Call& call, std::span<const shm::PlaceEntry> places, uint32_t begin,
                       uint32_t end) {
  end = std::min(end, static_cast<uint32_t>(blocks_.size()));
  const auto before = [](const shm::PlaceEntry& place, uint32_t block) {
    return place.block < block;
  };
  for (const RowGroup& group : call.wanted.groups) {
    if (group.block < begin || group.block >= end) continue;
    Block& block = blocks_[group.block];
    if (block.state != Block::State::kUnknown) continue;
    auto place = std::lower_bound(places.begin(), places.end(), group.block, before);
    Block found = {.state = Block::State::kHere};
    bool pending = false;
    for (; place != places.end() && place->block == group.block; ++place) {
      if (found.state != Block::State::kHere) break;
      switch (static_cast<shm::PlaceState>(place->state)) {
        case shm::PlaceState::kHere:
          if ((place->flags & shm::kOnDevice) != 0) {
            // Few bytes of a slice are not worth copying all of it: the node has it in host soon.
            found.state = Block::State::kElsewhere;
            break;
          }
          CAIRN_RETURN_IF_ERROR(Open(call, *place, &found));
          break;
        case shm::PlaceState::kPending:
          pending = true;
          break;
        case shm::PlaceState::kFailed:
          CAIRN_RETURN_IF_ERROR(shm::CheckPlace(*place, 0));
          found.state = Block::State::kFailed;
          found.reason = static_cast<MissReason>(place->reason);
          break;
        case shm::PlaceState::kElsewhere:
          found.state = Block::State::kElsewhere;
          break;
        default:
          return shm::CheckPlace(*place, 0);
      }
    }
    if (pending && found.state == Block::State::kHere) continue;
    // A block without a place is asked for again over gRPC, which says what became of it.
    if (found.state == Block::State::kHere && found.parts.empty()) {
      found.state = Block::State::kElsewhere;
    }
    block = std::move(found);
  }
  return OkStatus();
}

Status LocalRows::Open(Call& call, const shm::PlaceEntry& place, Block* block) {
  Part part;
  CAIRN_ASSIGN_OR_RETURN(part.segment, call.pin.session()->SegmentOf(place));
  part.bytes = part.segment->Read(place.offset, place.bytes);
  part.changes = (place.flags & shm::kLent) != 0 || !part.segment->frozen();
  part.tier = TierFromCode(place.tier).value_or(TierKind::kHost);
  Result<format::PartHeader> header = ReadHeaderOf(place, part.bytes, &copy_);
  if (!header.ok()) {
    call.pin.session()->Report(call.pin.lease(), place.block);
    ++call.report.counts.corrupt_rows;
    *block = {.state = Block::State::kFailed, .reason = MissReason::kCorrupt};
    return OkStatus();
  }
  part.header = *std::move(header);
  part.slices.resize(part.header.slices.size());
  block->parts.push_back(std::move(part));
  return OkStatus();
}

void LocalRows::Corrupt(Call& call, uint32_t block) {
  call.pin.session()->Report(call.pin.lease(), block);
  ++call.report.counts.corrupt_rows;
  blocks_[block] = {.state = Block::State::kFailed, .reason = MissReason::kCorrupt};
}

void LocalRows::Gather(Call& call, Batch* batch) {
  const uint32_t layer = call.wanted.layer;
  for (; batch->next < call.wanted.groups.size() && batch->bytes.size() < kBatchBytes;
       ++batch->next) {
    const RowGroup& group = call.wanted.groups[batch->next];
    Block& block = blocks_[group.block];
    if (block.state == Block::State::kElsewhere) {
      call.report.rest.push_back(batch->next);
      continue;
    }
    const auto has = [&](const Part& part) {
      const format::PartRect& rect = part.header.rect;
      return layer >= rect.layer_begin && layer < rect.layer_end && group.head >= rect.head_begin &&
             group.head < rect.head_end;
    };
    const auto part = std::find_if(block.parts.begin(), block.parts.end(), has);
    if (block.state == Block::State::kFailed || part == block.parts.end()) {
      const bool failed = block.state == Block::State::kFailed;
      call.failed.push_back({batch->next, failed ? block.reason : MissReason::kIncomplete});
      continue;
    }
    const format::SliceEntry& entry = part->header.slices[layer - part->header.rect.layer_begin];
    const Result<SliceRows> rows =
        call.wanted.layout.In(layer, part->header.rect, part->header.codec, entry.length);
    const size_t begin = batch->bytes.size();
    if (!rows.ok() || !GatherGroup(*rows, group, *part, layer, &batch->bytes)) {
      batch->bytes.resize(begin);
      Corrupt(call, group.block);
      call.failed.push_back({batch->next, MissReason::kCorrupt});
      continue;
    }
    batch->groups.push_back({.number = batch->next,
                             .info = {.block = group.block,
                                      .layer = layer,
                                      .head = group.head,
                                      .codec = part->header.codec,
                                      .slice_xxh3 = entry.xxh3},
                             .begin = begin,
                             .end = batch->bytes.size(),
                             .tier = part->tier});
  }
}

bool LocalRows::GatherGroup(const SliceRows& rows, const RowGroup& group, Part& part,
                            uint32_t layer, std::vector<std::byte>* out) {
  const uint32_t number = layer - part.header.rect.layer_begin;
  const format::SliceEntry& entry = part.header.slices[number];
  const auto slice = part.bytes.subspan(entry.offset, entry.length);
  const size_t begin = out->size();
  out->resize(begin + rows.Bytes(group.head, group.mask));
  if (part.changes) return GatherChanging(rows, group, part, layer, out->data() + begin);
  Slice& known = part.slices[number];
  if (!known.verified && BulkXxh3(slice) != entry.xxh3) return false;
  known.verified = true;
  rows.Gather(slice, group.head, group.mask, out->data() + begin);
  return true;
}

bool LocalRows::GatherChanging(const SliceRows& rows, const RowGroup& group, Part& part,
                               uint32_t layer, std::byte* out) {
  const format::PartRect& rect = part.header.rect;
  const uint32_t number = layer - rect.layer_begin;
  const format::SliceEntry& entry = part.header.slices[number];
  const auto slice = part.bytes.subspan(entry.offset, entry.length);
  Slice& known = part.slices[number];
  if (!known.verified) {
    copy_.resize(slice.size());
    if (CopyXxh3(copy_.data(), slice.data(), slice.size(), /*streaming=*/false) != entry.xxh3) {
      return false;
    }
    for (uint32_t head = rect.head_begin; head < rect.head_end; ++head) {
      ForEachHashedRun(rows, head,
                       [&](const auto&, uint32_t, uint32_t, uint64_t offset, uint64_t bytes) {
                         mu_.AssertHeld();
                         known.hashes.push_back(Xxh3(std::span(copy_).subspan(offset, bytes)));
                       });
    }
    known.verified = true;
    rows.Gather(copy_, group.head, group.mask, out);
    return true;
  }
  const size_t runs_of_head =
      rows.planes().size() * ((rows.block_tokens() + kHashedRows - 1) / kHashedRows);
  size_t run = (group.head - rect.head_begin) * runs_of_head;
  bool good = true;
  ForEachHashedRun(rows, group.head,
                   [&](const SliceRows::PlaneRows& plane, uint32_t first, uint32_t count,
                       uint64_t offset, uint64_t bytes) {
                     mu_.AssertHeld();
                     const uint64_t hash = known.hashes[run++];
                     const uint64_t word = group.mask[first / 64] >> (first % 64);
                     const uint64_t wanted = word & ((uint64_t{1} << count) - 1);
                     if (!good || wanted == 0) return;
                     copy_.resize(bytes);
                     std::memcpy(copy_.data(), slice.data() + offset, bytes);
                     good = Xxh3(copy_) == hash;
                     if (!good) return;
                     for (uint64_t left = wanted; left != 0; left &= left - 1) {
                       const auto token = first + static_cast<uint32_t>(std::countr_zero(left));
                       const SliceRows::Place row = rows.At(plane, group.head, token);
                       std::memcpy(out, copy_.data() + (row.offset - offset), row.bytes);
                       out += row.bytes;
                     }
                   });
  return good;
}

}  // namespace cairn::client::local
