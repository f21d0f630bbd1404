#pragma once
// The messages of members of a cluster about themselves, without their form on the wire.

#include <cstdint>
#include <string>

namespace cairn::cache {

// The versions of the peers' protocol that this build speaks. 2: pages of bumps carry the digest of
// all bumps.
inline constexpr uint32_t kOldestPeerVersion = 1, kNewestPeerVersion = 2;
inline constexpr uint32_t kPeerVersionWithBumpDigests = 2;

// The member on whose behalf a call is made.
struct PeerCaller {
  std::string cluster = {};
  std::string id = {};
  uint64_t incarnation = 0;  // Random for each start.
  bool operator==(const PeerCaller&) const = default;
};

struct PeerHello {
  PeerCaller caller = {};
  uint64_t epoch = 0;  // Grows with each start of this id.
  uint32_t oldest_version = kOldestPeerVersion, newest_version = kNewestPeerVersion;
  std::string address = {};  // Where it listens for other members.
  std::string host = {}, zone = {};
  uint64_t view_digest = 0;   // The digest of the ids of the members that it sees.
  uint64_t bumps_digest = 0;  // The digest of all bumps that it knows.
  bool leaving = false;       // It drains.
  std::string program = {};   // Version of the program. Empty: unknown.
};

struct PeerHelloAnswer {
  PeerHello callee;
  uint64_t announced = 0;  // The last announcement that the callee has from the caller. 0: none.
};

}  // namespace cairn::cache
