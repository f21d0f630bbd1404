#include <poll.h>

#include "tools/cairn/generator/generator.h"

namespace cairn::cli {

Status WaitForCache(Generator& generator, bool connected, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(const Generator::Info info, generator.GetInfo());
    if (info.cache_connected == connected) return OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return Errorf(StatusCode::kDeadlineExceeded,
                    "the worker is {} the cache node at {} after {} ms",
                    connected ? "not connected to" : "still connected to", info.cache_address,
                    timeout.count());
    }
    poll(nullptr, 0, 5);  // A worker does not announce its connection: it has to be asked.
  }
}

}  // namespace cairn::cli
