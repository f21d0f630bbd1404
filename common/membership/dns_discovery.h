#pragma once
// Members from DNS, as a headless Service of Kubernetes answers.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/concurrency/timers.h"
#include "common/membership/discovery.h"
#include "common/membership/resolver.h"

namespace cairn::membership {

// Asks for all names at a fixed interval. A member that an answer names is in the view at once. One
// that is named no more leaves after two whole answers without it, so that neither a lost packet
// nor a name server that starts empties the view. An answer without any member counts as an error:
// at least the process that asks should be there. Thread-safe.
class DnsDiscovery final : public Discovery {
 public:
  struct Options {
    // A name that begins with '_' is asked for SRV records, which have the port and names that need
    // no look-up here; all others for A and AAAA.
    std::vector<std::string> names = {};
    uint16_t port = 0;  // The port for records of type A and AAAA.
    Duration interval = std::chrono::seconds(5);
  };
  // The pointers must outlive it.
  DnsDiscovery(Options options, Resolver* resolver, Timers* timers, const Clock* clock);
  ~DnsDiscovery() override;  // Stop().

  Status Start(const Member& self, OnView on_view) override;
  void Stop() override;
  DiscoveryHealth health() const override;

 private:
  struct Round;
  struct State;
  static void Ask(const std::shared_ptr<State>& state);
  static void Finish(const std::shared_ptr<State>& state, Round& round);

  // Look-ups keep it alive, because they may end after the discovery.
  const std::shared_ptr<State> state_;
};

}  // namespace cairn::membership
