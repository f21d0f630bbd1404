#pragma once
// A router's answer about itself.

#include <cstdint>
#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "tools/cairn/options.h"

namespace cairn::cli {

// The message RouterInfo of proto/cairn/v1/router.proto, which describes the fields.
struct RouterView {
  std::string model = {}, policy = {};
  std::string waiting = {};                 // Empty: it answers.
  uint64_t ready_workers = 0, workers = 0;  // Those of the role prefill are among both.
  double arrivals_per_second = 0, use = 0;
  uint64_t requests_active = 0, requests_completed = 0, requests_shed = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0;
  uint64_t index_entries = 0, index_bytes = 0, index_members = 0;
};

// Not thread-safe.
class RouterInfoSource {
 public:
  virtual ~RouterInfoSource() = default;
  // UNAVAILABLE: the router is away. DEADLINE_EXCEEDED after `timeout`.
  virtual Result<RouterView> Ask(Duration timeout) = 0;
};

// Does not wait for the router. INVALID_ARGUMENT for an address or TLS file that cannot be used.
Result<std::unique_ptr<RouterInfoSource>> ConnectRouterInfo(const std::string& address,
                                                            const TlsFlags& tls = {});

}  // namespace cairn::cli
