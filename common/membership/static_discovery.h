#pragma once
// Members from a list of addresses in the settings.

#include <string>
#include <vector>

#include "common/membership/discovery.h"

namespace cairn::membership {

// Thread-safe.
class StaticDiscovery final : public Discovery {
 public:
  // `addresses`: "host:port" each.
  StaticDiscovery(std::vector<std::string> addresses, const Clock* clock);

  // Calls back once, inside this call. INVALID_ARGUMENT: an address is malformed, or there is none.
  Status Start(const Member& self, OnView on_view) override;
  void Stop() override {}
  DiscoveryHealth health() const override;

 private:
  const std::vector<std::string> addresses_;
  const TimePoint made_;
};

// INVALID_ARGUMENT, which names `field`: not "host:port" with a port of at least 1, or a Unix
// socket, which other machines cannot reach.
Status CheckMemberAddress(const std::string& address, const std::string& field);

}  // namespace cairn::membership
