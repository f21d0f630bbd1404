#include "services/cache/serve/rpc/sessions.h"

#include <sys/random.h>

namespace cairn::cache {
namespace {

// The same caller has another object after a change of the policy. With other rights the session is
// its own no longer, even if nobody has ended it yet: the old ones decided what it may use.
bool IsOf(const auth::KnownCaller* opener, const auth::KnownCaller* caller) {
  if (opener == caller) return true;
  return opener != nullptr && caller != nullptr && opener->identity == caller->identity &&
         (opener->is_operator || opener->rights == caller->rights);
}

}  // namespace

SessionToken Sessions::Add(SessionId session, const rpc::Call& call) {
  SessionToken token;
  // Up to 256 bytes come whole once the pool is seeded.
  CAIRN_CHECK(getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()));
  std::unique_lock lock(mu_);
  open_[token] = {session, call.caller()};
  return token;
}

void Sessions::Remove(const SessionToken& token) {
  std::unique_lock lock(mu_);
  open_.erase(token);
}

Result<SessionId> Sessions::Find(std::string_view bytes, const rpc::Call& call) const {
  CAIRN_ASSIGN_OR_RETURN(const SessionToken token, ToSessionToken(bytes));
  std::shared_lock lock(mu_);
  const auto it = open_.find(token);
  if (it == open_.end() || !IsOf(it->second.caller.get(), call.caller().get())) {
    return Errorf(StatusCode::kNotFound,
                  "session_id: no such session is open, expected one whose stream still runs");
  }
  return it->second.session;
}

}  // namespace cairn::cache
