#pragma once
// The links of this node to other members: what they share, from start to end. Which library moves
// the bytes, and how holders are called, its owner says.
//
// Thread-safe after Create, but for Close and Stop, which one thread calls.

#include <memory>

#include "common/link/link_holder.h"
#include "services/cache/cluster/link/block_receiver.h"
#include "services/cache/cluster/link/lent_blocks.h"

namespace cairn::cache {

class MemberLinks {
 public:
  struct Options {
    link::LinkOptions links = {};
    // In a large cluster there are more pairs of members than links. Those that are in use stay.
    link::LinkTable::Options table = {.least_rest = std::chrono::seconds(10)};
    link::PeerHistory::Options history = {};
    uint64_t buffer_bytes = 64 << 20;
    Duration timeout = std::chrono::seconds(1);  // Limit for one move.
    uint32_t pool = 0;                           // The GPU, by its place in the tier.
  };
  // All outlive it. `maker` makes communicators of the pool's device.
  struct Dependencies {
    DeviceTier* tier = nullptr;
    link::CommunicatorMaker* maker = nullptr;
    link::LinkCalls* calls = nullptr;
    Timers* timers = nullptr;
    const Clock* clock = nullptr;
    link::Link::Threads threads;
  };
  // Errors of the device: it has no memory for the buffer.
  static Result<std::unique_ptr<MemberLinks>> Create(const Options& options,
                                                     const Dependencies& dependencies);
  ~MemberLinks() { (void)Stop(); }

  BlockLender* lender() { return lent_.get(); }
  BlockFetcher* fetcher() { return receiver_.get(); }
  const std::shared_ptr<link::LinkHolder>& holder() const { return holder_; }

  // Lends and fetches no more, and begins to end all links.
  void Close();
  // Ends all links, within the deadlines that their options name. Fetches end before it returns.
  // False: something hangs in the library for good, and may touch the buffer and what
  // `dependencies` names: whoever owns these must not destroy them. Idempotent.
  bool Stop();

  struct Stats {
    link::LinkTable::Stats links;
    BlockReceiver::Counts received;
    LentBlocks::Counts lent;
    size_t quarantined = 0;  // Members that are left alone for a while.
    uint64_t buffer_bytes = 0, buffer_used = 0;
  };
  Stats stats() const;

 private:
  MemberLinks(const Options& options, const Dependencies& dependencies);

  const Options options_;
  const Dependencies dependencies_;
  std::shared_ptr<ExchangeBuffer> buffer_;
  link::Memories memories_;
  link::LinkTable table_;
  link::PeerHistory reader_history_, holder_history_;
  std::shared_ptr<link::LinkReader> reader_;
  std::shared_ptr<link::LinkHolder> holder_;
  std::shared_ptr<LentBlocks> lent_;
  std::shared_ptr<BlockReceiver> receiver_;
  bool closed_ = false, stopped_ = false, ended_ = false;
};

}  // namespace cairn::cache
