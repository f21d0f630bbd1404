#pragma once
// One block of a fetch on its way from wherever it lies to readable bytes.
//
// clang-format off
//   kLocate ─ mapped ─────────────────────────────────────► kReady
//      │ ├─ slower than host ─► kPromoting ─► kLocate          │ a slice fails its hash:
//      │ │                          └ no room ─► kWantBuffer   │ kLocate without the bad copy
//      │ └─ faster, not mapped ──────────────────► kWantBuffer
//      │                                              └─► kReading ─► kReady
//      │                                                     └ failed ─► kLocate without that tier
//      ├─ slower, few layers are wanted ─► kWantBuffer ─► kReading (header, then slices or pages of
//      │                                                     │  them) ─► kReady
//      │                                                     └ cannot ─► kLocate, the whole block
//      ├─ nowhere, located in a source ─► kWantSource ─► kArriving ─┬─ in host ───► kLocate
//      │                                      ▲                    ├─ in a buffer ► kReady
//      │                                      └────── no room ─────┤
//      └─ nowhere ─► kFailed ◄──────── absent, late, damaged ──────┘
// clang-format on
//
// It is read from the fastest tier that holds it. A tier that cannot be read leaves it to the next,
// and the last one to the source, if a source located the block for the lease.
//
// If a fetch wants few of a block's layers, and the tier reads ranges, header and slices are read
// apart (apart_read.h), and of slices that were compared under the lease before, the pages with
// wanted rows alone. Both kinds of reads into buffers are in buffered_read.h.
//
// Its place is pinned only while the slot has it: from the look-up to the last slice, where bytes
// are mapped, else as long as they are read into a buffer. A slot that waits is kept by the lease
// alone, and may leave host memory meanwhile.

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "services/cache/store/engine/path_pins.h"
#include "services/cache/store/engine/row_pages.h"
#include "services/cache/store/engine/source_reads.h"
#include "services/cache/store/engine/window_room.h"
#include "services/cache/store/lease/session_table.h"
#include "services/cache/store/mover/promoters.h"
#include "services/cache/store/mover/transfer_budget.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

struct FetchServices {
  NodeContext* context = nullptr;
  Promoters* promoters = nullptr;
  TransferBudget* budget = nullptr;
  SourceReads* source_reads = nullptr;
  SessionId reader = 0;  // The session that the fetch is for: has a share of the budget. 0: nobody.
};

struct BufferedRead;

struct FetchSlot {
  enum class State : uint8_t {
    kLocate,
    kPromoting,
    kWantBuffer,
    kReading,
    kWantSource,
    kArriving,
    kReady,
    kFailed
  };
  // Without the header's table of slices, which is read again for each slice: a fetch would hold
  // one entry for each layer of all its blocks.
  struct Part {
    format::PartRect rect;
    format::Codec codec = format::Codec::kRaw;
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> buffer;  // Keeps the bytes. nullptr: they are mapped, and pinned.
    uint64_t extent = 0;                 // In `tier`.
    // Read apart: then `bytes` are those of the part from `begin` on, or there are pieces of the
    // one wanted slice instead.
    std::shared_ptr<const KnownPart> known = nullptr;
    uint64_t begin = 0;
    std::shared_ptr<const SlicePieces> pieces = nullptr;

    // nullopt: the slice does not lie within the bytes. `data` stays empty if there are pieces.
    std::optional<format::SliceEntry> SliceOf(uint32_t layer,
                                              std::span<const std::byte>* data) const;
  };

  uint32_t block = 0;
  BlockKey key;
  State state = State::kLocate;
  // The tier that the block was found in, and that `parts` are read from.
  TierKind tier = TierKind::kHost;
  uint8_t unreadable = 0;  // Tiers that failed to read it, as BlockMeta::tiers.
  MissReason reason = MissReason::kNone;
  MissReason missing = MissReason::kAbsent;  // Why it failed if no other tier can read it.
  bool promotion_tried = false;
  bool failure_told = false;
  // A source located the block: the lease does not keep it.
  bool located = false;
  bool whole = false;    // It was not to be read apart.
  bool has_pin = false;  // One pin of `pins`, which it may share with others, is counted here.
  bool source_asked = false;
  bool no_room = false;  // When the source was asked last.
  uint8_t rejections = 0;
  uint64_t bytes = 0;
  // Wanted layers; [0, 0): all.
  uint32_t layer_begin = 0, layer_end = 0;
  // If not null, only these rows are wanted, of one layer.
  const WantedRows* rows = nullptr;
  // The most bytes that are read if it is read apart. 0: it is read whole.
  uint64_t apart_bytes = 0;
  PartPlaces places;
  std::vector<Part> parts;
  // The parts lie in the order of their first layers; those in [begun, begun_end) have `in_layer`.
  // Those before have ended, the others have not begun.
  size_t begun = 0, begun_end = 0;
  std::optional<uint32_t> in_layer;
  std::shared_ptr<BufferedRead> read;
  // Reads of all slots of a window that are under way: only the end of the last one is told. The
  // window waits for all of them. nullptr: each is told.
  std::shared_ptr<std::atomic<uint32_t>> reads;
  std::shared_ptr<ArrivingBlock> arriving;
  // The pins of its place, and of those that were looked up with it.
  std::shared_ptr<PathPins> pins;

  // Memory of the slot.
  uint64_t MemoryBytes() const {
    return sizeof(*this) + places.size() * (sizeof(PartPlace) + sizeof(Part)) +
           (has_pin ? sizeof(PathPins) + kPinBytes : 0);
  }
  // The part with this number among those that have the layer; nullptr: they are fewer. Takes steps
  // for the parts of the layer, not for all. REQUIRES: ready; `layer` does not fall.
  const Part* PartOf(uint32_t layer, size_t number);
  void EnterLayer(uint32_t layer);
  // The bytes of buffers, if it is read into some.
  uint64_t buffer_bytes() const { return apart_bytes > 0 ? apart_bytes : bytes; }
  // It waits for room that others hold.
  bool wants_room() const { return state == State::kWantBuffer || state == State::kWantSource; }
  bool settled() const { return state == State::kReady || state == State::kFailed; }
  // The parts are there. They are sent in the order of their rectangles, whatever order they came
  // in.
  void SetReady();
  void Fail(MissReason why) {
    state = State::kFailed;
    reason = why;
    parts.clear();
    read.reset();
    arriving.reset();
  }
};

// Bytes of the slot's places -> parts with checked headers, and ready. `buffer` keeps the bytes;
// nullptr: they are mapped. False when a header is bad.
bool OpenParts(const NamespaceState& ns, FetchSlot& slot,
               const std::vector<std::span<const std::byte>>& bytes,
               const std::shared_ptr<const void>& buffer);

// The reason for a block that lies in no tier of the node.
MissReason WhyGone(const NodeContext& context, const NamespaceState& ns, const BlockKey& key);

// How far LocateSlots came.
struct LocatedSlots {
  enum class Stop : uint8_t { kNone, kElsewhere, kNoRoom, kEnoughWork };
  size_t count = 0;
  Stop stop = Stop::kNone;
};
struct LocateLimits {
  // Stop before the first block that would not be read from memory.
  bool memory_run = false;
  // If not null: take room for each slot, and stop before the first one that finds none, or whose
  // headers are more work than one step takes.
  WindowRoom* room = nullptr;
  // The caller cannot wait: stop even before a first block if it alone is much work.
  bool hurry = false;
};
// Looks up where the slots' blocks lie, under one lock, and opens those in memory. Slots that are
// not in kLocate are left alone.
LocatedSlots LocateSlots(const FetchServices& services, const LeasePtr& lease,
                         std::span<FetchSlot> slots, const LocateLimits& limits);
// One step without blocking; true when the slot is settled.
bool AdvanceSlot(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot);
// A slice of the slot's bytes failed its hash: the copy is removed, and the slot starts again with
// what is left.
void RejectSlot(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot,
                const std::string& trace);

}  // namespace cairn::cache
