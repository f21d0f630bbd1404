#include "tests/fault/adversary/pauses.h"

#include <chrono>

namespace cairn::fault {
namespace {

constexpr std::chrono::milliseconds kEvery{10};

}  // namespace

Pauses::Pauses() : thread_([this] { Run(); }) {}

Pauses::~Pauses() {
  done_ = true;
  thread_.join();
}

void Pauses::Run() {
  TimePoint before = SteadyClock::Get().Now();
  while (!done_) {
    std::this_thread::sleep_for(kEvery);
    const TimePoint now = SteadyClock::Get().Now();
    const Duration::rep late = (now - before - kEvery).count();
    before = now;
    // Only this thread makes it longer.
    Duration::rep longest = longest_;
    while (late > longest && !longest_.compare_exchange_weak(longest, late)) {
    }
  }
}

}  // namespace cairn::fault
