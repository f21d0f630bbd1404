#pragma once
// The names of a caller.

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "common/net/tls.h"

namespace cairn::auth {

// The names of a caller that the transport proved, each with its kind in front, so that a name of
// one kind never passes for one of another: "uri:spiffe://prod/engine", "dns:engine.example",
// "cn:engine", "uid:1000". All are of one kind. None: nobody knows who it is.
struct Identity {
  std::vector<std::string> names = {};

  bool known() const { return !names.empty(); }
  std::string Describe() const;  // For errors and logs.
  friend bool operator==(const Identity&, const Identity&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Identity& identity) {
    return H::combine(std::move(state), identity.names);
  }
};

// A certificate's URI, as SPIFFE has it, if there is exactly one; else its DNS names; else its
// common name. One with several URIs proves nothing (SPIFFE X509-SVID, section 2). DNS names are in
// lower case.
Identity IdentityOf(const net::Caller& caller);

// The owner of a process on this machine, as the kernel tells.
Identity IdentityOfUser(uid_t uid);

}  // namespace cairn::auth
