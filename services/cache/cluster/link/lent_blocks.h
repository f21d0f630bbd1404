#pragma once
// Blocks of the device tier that are laid out for other members.
//
//   Lend ─► room in the buffer ─► copied there ─► offered to the member ─┬─ Grant ─► it moves
//                                                                       └─ `life` passes ─► gone

#include <map>
#include <memory>
#include <string>

#include "common/concurrency/timers.h"
#include "common/link/messages.h"
#include "services/cache/cluster/link/exchange_buffer.h"
#include "services/cache/cluster/peer/block_moves.h"
#include "services/cache/store/tier/device/device_tier.h"

namespace cairn::cache {

// Thread-safe. Its callbacks keep it alive.
class LentBlocks final : public BlockLender, public std::enable_shared_from_this<LentBlocks> {
 public:
  struct Options {
    uint32_t memory = 0;                      // The buffer's number.
    uint32_t pool = 0;                        // The pool of the tier: that of the buffer's device.
    Duration life = std::chrono::seconds(3);  // The life of a block that is lent and not moved.
  };
  // `tier`, `timers` and `clock` outlive it.
  LentBlocks(const Options& options, std::shared_ptr<ExchangeBuffer> buffer, DeviceTier* tier,
             Timers* timers, const Clock* clock);

  // RESOURCE_EXHAUSTED: the buffer has no room. UNIMPLEMENTED: the block lies on another GPU.
  // UNAVAILABLE: the device is lost, or Stop was called.
  void Lend(const std::string& member, DeviceBlock block, LendDone done) override;
  // As link::LinkHolder::Grant: one block that was lent to this member, whole, and once.
  Result<std::shared_ptr<void>> Grant(const std::string& member, const link::Plan& plan);
  // Lends and grants no more.
  void Stop();

  struct Counts {
    uint64_t lent = 0;     // Blocks.
    uint64_t refused = 0;  // There was no room, or the copy failed.
    uint64_t granted = 0, granted_bytes = 0;
    uint64_t expired = 0;  // Lent, and not moved.
  };
  Counts counts() const;

 private:
  struct Lent {
    std::string member;
    ExchangeBuffer::Room room;
    Timers::Id timer = 0;
  };
  void Refuse(const LendDone& done, const Status& why);
  // False: it is stopped.
  bool Offer(const std::string& member, const ExchangeBuffer::Room& room);
  // Expires the room if its keeper is still that of `keep`.
  void Expire(uint64_t offset, const std::weak_ptr<void>& keep);

  const Options options_;
  const std::shared_ptr<ExchangeBuffer> buffer_;
  DeviceTier& tier_;
  Timers& timers_;
  const Clock& clock_;
  mutable Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::map<uint64_t, Lent> lent_ ABSL_GUARDED_BY(mu_);  // By offset.
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
