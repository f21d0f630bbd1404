#pragma once
// Pushes over a same-node session: the caller writes into the node's memory.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/cpp/src/core/transport.h"
#include "clients/cpp/src/local/local_session.h"

namespace cairn::client::local {

// Rooms of the session, and for parts that the session has no room for, those of the hook `rest`,
// which is asked once. Used by one thread.
class LocalPush final : public InPlacePush {
 public:
  // UNAVAILABLE, DATA_LOSS, RESOURCE_EXHAUSTED: the session cannot do it; NOT_FOUND: the namespace
  // is not open.
  static Result<std::unique_ptr<LocalPush>> Begin(std::shared_ptr<LocalSession> session,
                                                  const Digest& fingerprint,
                                                  std::span<const PartToWrite> parts,
                                                  const PushOptions& options,
                                                  const InPlaceHooks& hooks, TimePoint deadline);
  ~LocalPush() override;

  std::span<const Slot> slots() const override { return slots_; }
  Path path() const override { return Path::kLocal; }
  Result<std::vector<Status>> Commit() override;

 private:
  LocalPush(std::shared_ptr<LocalSession> session, const PushOptions& options,
            std::function<void(uint64_t parts, uint64_t bytes)> committed)
      : session_(std::move(session)),
        deadline_(options.deadline),
        committed_(std::move(committed)) {}

  const std::shared_ptr<LocalSession> session_;
  const Duration deadline_;  // The deadline of the commit, from its beginning.
  const std::function<void(uint64_t parts, uint64_t bytes)> committed_;
  std::vector<Slot> slots_;
  // The slots with room at the node. Each segment stays mapped as long as its rooms.
  std::vector<size_t> held_;
  std::vector<uint64_t> reservations_;
  std::vector<std::shared_ptr<const ArenaSegment>> segments_;
  // The push of the others.
  std::unique_ptr<InPlacePush> rest_;
  std::vector<size_t> rest_slots_;
};

// Push: copies sealed parts into rooms of the session, as many at a time as the node gives room
// for.
PushReport PushParts(const std::shared_ptr<LocalSession>& session, const Digest& fingerprint,
                     std::span<const PartToPush> parts, TimePoint deadline);

}  // namespace cairn::client::local
