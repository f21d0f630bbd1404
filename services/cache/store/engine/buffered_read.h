#pragma once
// Reads the block of a slot into buffers of its own, from a tier that is not mapped: whole, or
// header and slices apart (apart_read.h).
//
//   StartRead ─► ReadStretches ─► [tier's threads] a callback for each stretch ─► progress.Notify
//   FinishRead ─► parts, ready; or the slices, after the headers; or another place
//
// The thread that advances a slot calls these; nothing blocks.

#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "services/cache/store/engine/fetch_slot.h"

namespace cairn::cache {

// The buffers of one block. `share` goes back with the last slice that is held. One thread at a
// time uses it, but for finished() and PartEnded.
struct BufferedRead {
  explicit BufferedRead(NodeContext* context) : token(&context->in_flight) {}
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  InFlight::Token token;  // The budget is the engine's, which waits.
  std::shared_ptr<TransferBudget::Share> share;
  std::vector<std::unique_ptr<std::byte, Free>> buffers;
  // A part of the places' bytes in the buffers: [begin, begin + size). If the block is read apart,
  // these are headers first, unless the lease knows them, and then slices or pages of them.
  struct Stretch {
    size_t place = 0;
    uint64_t begin = 0;
    uint64_t size = 0;
    std::shared_ptr<const KnownPart> known = nullptr;  // If it is of slices.
    // If this is not empty, it is some pages of a slice, and these are their hashes.
    std::vector<uint64_t> hashes = {};
  };
  std::vector<Stretch> stretches;
  bool apart = false;
  bool slices = false;                    // Read apart, and not the headers.
  std::shared_ptr<BufferedRead> headers;  // Keeps the share of the budget.
  std::span<std::byte> bytes(size_t i) const { return {buffers[i].get(), stretches[i].size}; }
  // RESOURCE_EXHAUSTED: no memory.
  Status Add(const Stretch& stretch);
  bool finished() const {
    MutexLock lock(mu);
    return done == buffers.size();
  }
  // When finished: the first error.
  Status Outcome() const {
    MutexLock lock(mu);
    return status;
  }
  // True: that was the last one.
  bool PartEnded(const Status& result) {
    MutexLock lock(mu);
    if (status.ok()) status = result;
    return ++done == buffers.size();
  }
  mutable Mutex mu;
  size_t done ABSL_GUARDED_BY(mu) = 0;
  Status status ABSL_GUARDED_BY(mu);
};

// Begins to read what the slot was told, if the budget has room for it: kWantBuffer -> kReading.
void StartRead(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot);
// REQUIRES: the read of the slot is finished.
void FinishRead(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot);
// Reads the stretches of `read` into its buffers.
void ReadStretches(const FetchServices& services, const LeasePtr& lease,
                   const std::shared_ptr<BufferedRead>& read, FetchSlot& slot);

}  // namespace cairn::cache
