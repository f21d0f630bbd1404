#pragma once
// Look-ups with c-ares, on one thread.

#include <memory>
#include <string>

#include "common/membership/resolver.h"

namespace cairn::membership {

// Follows /etc/resolv.conf: its servers, search list, attempts. An answer that does not fit a
// datagram is asked for again over TCP. Thread-safe.
class CaresResolver final : public Resolver {
 public:
  // `servers`: "host:port,..." in place of those of /etc/resolv.conf; empty: those. UNAVAILABLE:
  // c-ares does not start. INVALID_ARGUMENT: the servers are malformed.
  static Result<std::unique_ptr<CaresResolver>> Create(const std::string& servers);
  ~CaresResolver() override;

  void Resolve(const std::string& name, RecordType type, Done done) override;

 private:
  class Loop;
  explicit CaresResolver(std::unique_ptr<Loop> loop);
  const std::unique_ptr<Loop> loop_;
};

}  // namespace cairn::membership
