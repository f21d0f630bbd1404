#include "services/cache/serve/node/exit_guard.h"

#include <cstdlib>
#include <system_error>
#include <thread>

#include "common/concurrency/mutex.h"
#include "common/log/log.h"

namespace cairn::cache {

void EndProcessAfter(Duration limit, int code) {
  const auto wait = [limit, code] {
    Mutex mu;
    CondVar never;
    {
      MutexLock lock(mu);
      never.WaitUntil(mu, SteadyClock::Get().Now() + limit, [] { return false; });
    }
    log::Error("stop_hangs",
               {{"after_seconds", log::Num(Seconds(limit))}, {"exit", log::Num(code)}});
    (void)log::Flush(std::chrono::seconds(1));
    std::_Exit(code);
  };
  try {
    // Detached: it ends with the process, whichever way that ends.
    std::thread(wait).detach();
  } catch (const std::system_error& error) {
    // The last flush counts for more than an end in time.
    log::Warn("no_exit_guard", {{"reason", error.what()}});
  }
}

}  // namespace cairn::cache
