#include "common/auth/identity.h"

#include <fmt/format.h>

#include "absl/strings/ascii.h"

namespace cairn::auth {

std::string Identity::Describe() const { return known() ? names.front() : "(nobody known)"; }

Identity IdentityOf(const net::Caller& caller) {
  Identity identity;
  if (!caller.uris.empty()) {
    if (caller.uris.size() == 1) identity.names.push_back("uri:" + caller.uris.front());
    return identity;
  }
  for (const std::string& name : caller.dns_names) {
    identity.names.push_back("dns:" + absl::AsciiStrToLower(name));
  }
  if (identity.known()) return identity;
  if (caller.common_names.size() == 1) {
    identity.names.push_back("cn:" + caller.common_names.front());
  }
  return identity;
}

Identity IdentityOfUser(uid_t uid) { return {.names = {fmt::format("uid:{}", uid)}}; }

}  // namespace cairn::auth
