#pragma once
// Two processes that move bytes between their devices, as an injected dependency. nccl/ has the
// real one, tests one without a library.

#include <cstdint>
#include <memory>
#include <vector>

#include "cairn/common/status.h"
#include "common/link/messages.h"

namespace cairn::link {

// The bytes of a plan as one side sees them.
struct Move {
  struct Part {
    uint64_t address = 0;  // On this side.
    uint64_t bytes = 0;
    // Where a put writes: the reader's window and the offset in it.
    uint32_t window = 0;
    uint64_t offset = 0;
  };
  bool receives = false;  // False: this side sends.
  Way way = Way::kSend;
  std::vector<Part> parts = {};
};

// A communicator of two ranks. No call waits for the peer by intention, but each may hang, because
// it goes into a library: so callers give it threads that they can do without.
//
// Join, Issue, Poll and `puts` are called by one thread at a time. Revoke and Abort are called by
// another one, once each, in this order, and possibly while a call of the first thread hangs. No
// new call is made once Revoke has begun. It is destroyed after Abort has returned, or never.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Begins to join. Poll tells when both have.
  virtual Status Join() = 0;
  // Begins to move. REQUIRES: what was begun before has ended. Addresses are checked by the caller.
  virtual Status Issue(const Move& move) = 0;
  // Whether what was begun last has ended. Not OK: the communicator is of no use any more.
  virtual Result<bool> Poll() = 0;
  // Whether puts work. REQUIRES: it has joined.
  virtual bool puts() const = 0;

  // Stops what is under way.
  virtual void Revoke() = 0;
  // When it returns, nothing of this communicator touches any memory any more.
  virtual void Abort() = 0;
};

// Thread-safe.
class CommunicatorMaker {
 public:
  // A memory that both sides register, the n-th of one with the n-th of the other.
  struct Window {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };

  virtual ~CommunicatorMaker() = default;
  virtual int32_t version() const = 0;
  // A new id, made by the process that will be rank 0. It may hang.
  virtual Result<UniqueId> NewId() = 0;
  // Calls nothing that can hang. `windows`: empty: no puts.
  virtual std::shared_ptr<Communicator> Make(const UniqueId& id, int rank,
                                             std::vector<Window> windows) = 0;
};

}  // namespace cairn::link
