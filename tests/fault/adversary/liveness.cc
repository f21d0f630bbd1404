#include "tests/fault/adversary/liveness.h"

#include <algorithm>

#include "common/metrics/admin_server.h"

namespace cairn::fault {
namespace {

constexpr Duration kPatience = std::chrono::seconds(3);
constexpr Duration kPeriod = std::chrono::milliseconds(250);

}  // namespace

Liveness::Liveness(const TestedServer* server) : server_(*server), thread_([this] { Run(); }) {}

Liveness::~Liveness() {
  done_.store(true);
  thread_.join();
}

Liveness::Window Liveness::TakeWindow() {
  MutexLock lock(mu_);
  return std::exchange(window_, {});
}

void Liveness::Run() {
  while (!done_.load()) {
    const TimePoint begin = SteadyClock::Get().Now();
    const auto answer = metrics::HttpGet(server_.admin(), "/livez", kPatience);
    const TimePoint end = SteadyClock::Get().Now();
    if (!server_.WasAwayOnPurpose(begin, end)) {
      MutexLock lock(mu_);
      ++window_.probes;
      window_.slowest_ms = std::max(window_.slowest_ms, Seconds(end - begin) * 1e3);
      if (!answer.ok()) {
        ++window_.red;
        window_.last_error = ToString(answer.status());
      }
    }
    std::this_thread::sleep_for(kPeriod);
  }
}

}  // namespace cairn::fault
