#pragma once
// Tokens of open sessions. The engine counts sessions from 1; clients see 16 random bytes, so that
// nobody can guess another's. Where callers are known, a token is good for the one that opened the
// session.

#include <memory>
#include <shared_mutex>

#include "absl/container/flat_hash_map.h"
#include "common/rpc/call.h"
#include "services/cache/serve/rpc/request_fields.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

// Thread-safe.
class Sessions {
 public:
  // A fresh token for the session, which `call` opens.
  SessionToken Add(SessionId session, const rpc::Call& call);
  void Remove(const SessionToken& token);
  // INVALID_ARGUMENT for a malformed token, NOT_FOUND for one that is not open (any more), or whose
  // session another caller opened, or this one with other rights.
  Result<SessionId> Find(std::string_view token, const rpc::Call& call) const;

 private:
  struct Open {
    SessionId session = 0;
    std::shared_ptr<const auth::KnownCaller> caller;  // nullptr: the node has no policy.
  };
  mutable std::shared_mutex mu_;
  absl::flat_hash_map<SessionToken, Open> open_;  // Guarded by mu_.
};

}  // namespace cairn::cache
