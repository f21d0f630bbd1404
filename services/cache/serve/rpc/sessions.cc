#include "services/cache/serve/rpc/sessions.h"

#include <sys/random.h>

namespace cairn::cache {

SessionToken Sessions::Add(SessionId session) {
  SessionToken token;
  // Up to 256 bytes come whole once the pool is seeded.
  CAIRN_CHECK(getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()));
  std::unique_lock lock(mu_);
  open_[token] = session;
  return token;
}

void Sessions::Remove(const SessionToken& token) {
  std::unique_lock lock(mu_);
  open_.erase(token);
}

Result<SessionId> Sessions::Find(std::string_view bytes) const {
  CAIRN_ASSIGN_OR_RETURN(const SessionToken token, ToSessionToken(bytes));
  std::shared_lock lock(mu_);
  const auto it = open_.find(token);
  if (it == open_.end()) {
    return Errorf(StatusCode::kNotFound,
                  "session_id: no such session is open, expected one whose stream still runs");
  }
  return it->second;
}

}  // namespace cairn::cache
