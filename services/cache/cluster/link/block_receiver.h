#pragma once
// Fetches blocks that other members have lent.
//
//   Fetch ─► room in the buffer ─► link ─► copies to the host ─► done
//
// No block waits for a link that is not there yet: it is made in the background. And one that has
// not moved anything yet, or not since a move failed, is tried with one block at a time. All others
// come as streams meanwhile.

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/link/link_reader.h"
#include "services/cache/cluster/link/exchange_buffer.h"
#include "services/cache/cluster/peer/block_moves.h"
#include "services/cache/store/tier/device/device_tier.h"

namespace cairn::cache {

// Why a block did not come over a link.
enum class MoveFailure : uint8_t { kDeadline, kRefused, kBroken, kNoRoom, kCopy };
inline constexpr std::array<const char*, 5> kMoveFailures = {"deadline", "refused", "broken",
                                                             "no_room", "copy"};

// Thread-safe. Its callbacks keep it alive.
class BlockReceiver final : public BlockFetcher,
                            public std::enable_shared_from_this<BlockReceiver> {
 public:
  struct Options {
    uint32_t memory = 0;  // The buffer's number.
    // The pool of the tier: that of the buffer's device.
    uint32_t pool = 0;
    Duration timeout = std::chrono::seconds(1);  // Limit for one move.
    Duration pause = std::chrono::seconds(1);    // Until a member whose move failed is tried again.
  };
  // `tier`, `history` and `clock` outlive it.
  BlockReceiver(const Options& options, std::shared_ptr<ExchangeBuffer> buffer, DeviceTier* tier,
                std::shared_ptr<link::LinkReader> reader, const link::PeerHistory* history,
                const Clock* clock);

  bool MayFetch(const std::string& member) const override;
  void Fetch(const std::string& member, const LentBlock& block,
             std::vector<std::span<std::byte>> rooms, TimePoint deadline, FetchDone done) override;
  void NoteWrong(const std::string& member, const Status& why) override;
  // Takes no more, and waits until all fetches have ended. The links have.
  void Stop();

  struct Counts {
    uint64_t moved = 0, moved_bytes = 0;  // Blocks; with what lies between parts.
    std::array<uint64_t, kMoveFailures.size()> failures{};
  };
  Counts counts() const;

 private:
  struct Member {
    bool works = false;       // The last move ended well.
    TimePoint next_try{};     // When to try a block again over a link that does not work.
    TimePoint next_making{};  // When to make a link again.
  };
  struct Copies;

  void Moved(const std::string& member, const LentBlock& block, const ExchangeBuffer::Room& room,
             std::vector<std::span<std::byte>> rooms, const FetchDone& done);
  void Fail(const std::string& member, MoveFailure why, const Status& status,
            const FetchDone& done);
  void Copied(const std::string& member, const ExchangeBuffer::Room& room, const Status& copied,
              const FetchDone& done);
  void End(const Status& status, const FetchDone& done);
  // Lets the member rest, and then one block at a time try it.
  void Rest(const std::string& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const std::shared_ptr<ExchangeBuffer> buffer_;
  DeviceTier& tier_;
  const std::shared_ptr<link::LinkReader> reader_;
  const link::PeerHistory& history_;
  const Clock& clock_;
  mutable Mutex mu_;
  CondVar ended_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  size_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  // Members that were asked about. A cluster has few members.
  mutable std::map<std::string, Member> members_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
