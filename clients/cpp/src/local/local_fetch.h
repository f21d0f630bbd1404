#pragma once
// One Fetch over a same-node session: makes verified slices from places.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/cpp/src/fetch_counts.h"
#include "clients/cpp/src/local/local_session.h"
#include "common/memory/bulk_copy.h"

namespace cairn::client::local {

// Blocks that are in the node's memory come first, layer by layer. Then those from disk come, as
// they arrive. The answers of the node are checked as on the network. Used by one thread.
class LocalFetch {
 public:
  // All outlive the fetch. `blocks`: of the lease.
  LocalFetch(std::shared_ptr<LeasePin> pin, uint32_t blocks, const FetchRange& range,
             FetchSink& sink, const FetchOptions& options, TimePoint deadline);

  // As CacheClient::Fetch. UNAVAILABLE and DATA_LOSS: the session is of no use any more, and the
  // blocks of rest() have not been delivered whole.
  Status Run();

  const FetchCounts& counts() const { return counts_; }
  // Blocks that only gRPC can bring, as ranges [begin, end): after OK those that this session
  // cannot read, after an error all that were not delivered whole.
  std::vector<std::pair<uint32_t, uint32_t>> rest() const;
  // Slices of such blocks that were delivered all the same.
  std::vector<SliceInfo> delivered_of_rest() const;

 private:
  struct Part {
    shm::PlaceEntry place;
    std::shared_ptr<const ArenaSegment> segment;
    std::span<const std::byte> bytes;  // For a part on a GPU: only a copy of its header, `copied`.
    // Instead of `segment`, for a part on a GPU.
    std::shared_ptr<const DeviceChunk> chunk = {};
    std::vector<std::byte> copied = {};
    format::PartHeader header;
    // If the sink wants lent slices, and nobody can write where these lie. Null: they are copied.
    std::shared_ptr<const LentHold> hold;
  };
  // A slice that waits for its turn to be copied, or hashed where it lies (lent).
  struct Queued {
    const Part* part = nullptr;
    SliceInfo slice;
    std::span<const std::byte> from;
    std::span<std::byte> to;
    std::vector<std::span<std::byte>> pieces = {};  // Instead of `to`.
    std::vector<std::byte> own = {};                // Where the reader gave no destination.
    std::vector<std::byte> copied = {};             // The copy behind `from`, for a part on a GPU.
    bool good = true;

    bool lent() const { return part->hold != nullptr; }
    void AddRuns(std::vector<CopyRun>* runs) const;
  };
  enum class Block : uint8_t { kOpen, kPending, kElsewhere, kFailed, kDone };

  // Sorts the places of blocks below `known` into ready_, or into the blocks to ask for again.
  Status Take(std::span<const shm::PlaceEntry> places, uint32_t known);
  Status AddReady(const shm::PlaceEntry& place);
  // Copies the headers of parts on GPUs to the host.
  void CopyHeaders();
  // Checks and keeps the part's header; what is wrong there fails the block.
  void ReadHeader(Part& part);
  // The part's bytes are wrong. A part on a GPU may also lie elsewhere.
  void Corrupt(const Part& part);
  // Everything in ready_, layer by layer.
  Status Deliver();
  // Queues one slice; the queue is worked off when it is long.
  Status DeliverSlice(const Part& part, uint32_t layer);
  // Copies and verifies what is queued, and tells the sink.
  Status Flush();
  // Brings queued slices from GPUs to the host, to be verified and copied on as the others.
  void CopyFromDevices();
  void CopyQueued();
  // Gives the sink what it reads on a GPU.
  Status FlushOnDevice();
  void Count(const Part& part, const SliceInfo& slice);
  // Gives up a block that only another path can bring now.
  void Elsewhere(uint32_t block);
  void Fail(uint32_t block, MissReason reason);
  // Copies from each part's chunk what `pieces_of` the part says, and calls `failed` for the parts
  // of chunks that cannot be read.
  template <typename Item, typename PieceOf, typename Failed>
  void ReadChunks(std::span<Item> items, const PieceOf& piece_of, const Failed& failed);
  Block& StateOf(uint32_t block) { return blocks_[block - block_begin_]; }
  // The first and the last block that is pending, as a range; empty when there is none.
  std::pair<uint32_t, uint32_t> Pending() const;
  // Places of the blocks that are pending, waiting a little for them.
  Status AskAgain();
  Status CheckTime(TimePoint now) const;

  const std::shared_ptr<LeasePin> pin_;
  LocalSession& session_;
  const Clock& clock_;
  const uint32_t block_begin_, block_end_;
  const uint32_t layer_begin_, layer_end_;  // layer_end_ 0: all.
  FetchSink& sink_;
  const FetchOptions& options_;
  const TimePoint deadline_;
  const bool lend_;
  const bool on_device_;  // The sink reads slices on a GPU.
  TimePoint progress_;

  std::vector<Block> blocks_;  // From block_begin_ on.
  std::vector<Part> ready_;
  std::vector<Queued> queue_;
  std::vector<std::vector<std::byte>> spare_;  // Buffers of earlier slices, for Queued::own.
  uint64_t queued_bytes_ = 0;
  std::vector<std::byte> header_;          // Reused.
  std::vector<const Part*> device_parts_;  // The parts of device_queue_.
  std::vector<DeviceSlice> device_queue_;
  std::vector<SliceInfo> delivered_on_device_;  // From GPUs, whoever looked at them.
  bool streaming_ = false;
  FetchCounts counts_;
};

}  // namespace cairn::client::local
