#pragma once
// Tokens of open sessions. The engine counts sessions from 1; clients see 16 random bytes, so that
// nobody can guess another's.

#include <cstring>
#include <shared_mutex>

#include "absl/container/flat_hash_map.h"
#include "services/cache/serve/rpc/request_fields.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

// Thread-safe.
class Sessions {
 public:
  // A fresh token for the session.
  SessionToken Add(SessionId session);
  void Remove(const SessionToken& token);
  // INVALID_ARGUMENT for a malformed token, NOT_FOUND for one that is not open (any more).
  Result<SessionId> Find(std::string_view token) const;

 private:
  mutable std::shared_mutex mu_;
  absl::flat_hash_map<SessionToken, SessionId> open_;  // Guarded by mu_.
};

}  // namespace cairn::cache
