#pragma once
// Calls to a holder, as an injected dependency: gRPC in products (protocol/link).

#include <functional>
#include <string>

#include "common/link/messages.h"

namespace cairn::link {

// Thread-safe. No call blocks. `done` runs once, on any thread, possibly inside the call; a
// destroyed LinkCalls runs those that are left with CANCELLED.
class LinkCalls {
 public:
  virtual ~LinkCalls() = default;
  virtual void Open(const std::string& peer, const OpenRequest& request, TimePoint deadline,
                    std::function<void(Result<OpenAnswer>)> done) = 0;
  virtual void Move(const std::string& peer, const MoveRequest& request, TimePoint deadline,
                    std::function<void(Status)> done) = 0;
  // OK: the holder's communicator of this epoch is gone, and writes no more. ABORTED: it did not
  // end. Other errors: nobody knows.
  virtual void Close(const std::string& peer, uint64_t epoch, TimePoint deadline,
                     std::function<void(Status)> done) = 0;
};

}  // namespace cairn::link
