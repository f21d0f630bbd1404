#include "tests/fault/adversary/honest_load.h"

#include <algorithm>

namespace cairn::fault {
namespace {

constexpr size_t kMaxWrongTexts = 20;
// Longer than any deadline of a call.
constexpr Duration kPatience = std::chrono::seconds(60);

}  // namespace

double HonestWindow::SuccessRate() const {
  return calls == 0 ? 0 : 1 - static_cast<double>(failed) / static_cast<double>(calls);
}

double HonestWindow::Quantile(double quantile) const {
  if (milliseconds.empty()) return 0;
  std::vector<double> sorted = milliseconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<size_t>(quantile * static_cast<double>(sorted.size() - 1))];
}

HonestLoad::HonestLoad(const TestedServer* server, std::unique_ptr<HonestClient> client,
                       Options options)
    : server_(*server), client_(std::move(client)), options_(std::move(options)) {
  for (uint32_t i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this, i] { Run(options_.seed * 1000 + i); });
  }
}

HonestLoad::~HonestLoad() {
  {
    MutexLock lock(mu_);
    done_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void HonestLoad::Pause() {
  MutexLock lock(mu_);
  paused_ = true;
  const bool idle =
      changed_.WaitUntil(mu_, SteadyClock::Get().Now() + kPatience,
                         [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return active_ == 0; });
  CAIRN_CHECK(idle);
}

void HonestLoad::Continue() {
  MutexLock lock(mu_);
  paused_ = false;
  changed_.NotifyAll();
}

HonestWindow HonestLoad::TakeWindow() {
  MutexLock lock(mu_);
  return std::exchange(window_, {});
}

bool HonestLoad::BeginStep() {
  MutexLock lock(mu_);
  changed_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return done_ || !paused_; });
  if (done_) return false;
  ++active_;
  return true;
}

void HonestLoad::EndStep() {
  MutexLock lock(mu_);
  if (--active_ == 0 && paused_) changed_.NotifyAll();
}

void HonestLoad::Run(uint64_t seed) {
  std::mt19937_64 random(seed);
  while (BeginStep()) {
    client_->Step(random, *this);
    EndStep();
    if (options_.pause > Duration{0}) std::this_thread::sleep_for(options_.pause);
  }
}

void HonestLoad::Note(HonestCall call) {
  const TimePoint end = SteadyClock::Get().Now();
  const bool away = server_.WasAwayOnPurpose(call.begin, end);
  calls_.fetch_add(1);
  MutexLock lock(mu_);
  for (std::string& text : call.wrong) {
    if (window_.wrong.size() < kMaxWrongTexts) window_.wrong.push_back(std::move(text));
  }
  if (away) return;
  ++window_.calls;
  const double took = Seconds(end - call.begin) * 1e3;
  window_.milliseconds.push_back(took);
  if (took > window_.longest_ms) {
    window_.longest_ms = took;
    window_.slowest = fmt::format("{} of {}", call.what, options_.name);
    if (!call.failure.empty()) window_.slowest += ", which failed: " + call.failure;
  }
  window_.read_blocks += call.blocks;
  if (call.failure.empty()) return;
  ++window_.failed;
  ++window_.failures[call.failure];
}

}  // namespace cairn::fault
