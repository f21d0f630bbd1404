#include "tests/fault/adversary/honest_load.h"

#include <algorithm>
#include <random>

#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Most prompts that are read are among so many of the last stored ones.
constexpr uint64_t kHotPrompts = 48;
constexpr size_t kMaxWrongTexts = 20;
// Longer than any deadline of a call.
constexpr milliseconds kPatience = seconds(60);

FaultModelOptions ModelOf(const std::string& tenant) {
  return {.tenant = tenant,
          .model = "honest",
          .layers = 4,
          .kv_heads = 3,
          .dim = 32,
          .roots = 4096,
          .branching = 8,
          .depth = 6};
}

client::ConnectOptions ConnectionOf(const std::string& address, const std::string& name,
                                    client::PathChoice path) {
  client::ConnectOptions options{.address = address, .client_name = name, .path = path};
  options.breaker = {
      .failures = 3, .first_backoff = milliseconds(10), .max_backoff = milliseconds(50)};
  options.max_reconnect_backoff = milliseconds(100);
  return options;
}

std::string CodeOf(const std::string& what, const Status& status) {
  return what + " " + absl::StatusCodeToString(status.code()) + ": " +
         Message(status).substr(0, 200);
}

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

void HonestWindow::Add(const HonestWindow& other) {
  calls += other.calls;
  failed += other.failed;
  for (const auto& [why, count] : other.failures) failures[why] += count;
  if (other.longest_ms > longest_ms) {
    longest_ms = other.longest_ms;
    slowest = other.slowest;
  }
  milliseconds.insert(milliseconds.end(), other.milliseconds.begin(), other.milliseconds.end());
  read_blocks += other.read_blocks;
  local_calls += other.local_calls;
  wrong.insert(wrong.end(), other.wrong.begin(), other.wrong.end());
}

HonestLoad::HonestLoad(const TestedNode* node, Options options)
    : node_(*node), options_(std::move(options)), model_(ModelOf(options_.tenant)) {
  auto client = client::Connect(ConnectionOf(node_.address(), options_.tenant, options_.path));
  CAIRN_CHECK(client.ok());
  client_ = *std::move(client);
  CAIRN_CHECK(WaitUntil(
      [this] { return client_->OpenNamespace(model_.spec(), {.deadline = seconds(5)}).ok(); },
      kPatience));
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
    const uint64_t newest = next_prompt_.load();
    const bool old = newest > 0 && random() % 4 != 0;
    Step(old ? newest - 1 - random() % std::min(newest, kHotPrompts) : next_prompt_.fetch_add(1));
    EndStep();
    if (options_.pause > Duration{0}) std::this_thread::sleep_for(options_.pause);
  }
}

void HonestLoad::Step(uint64_t prompt) {
  const std::vector<BlockKey> keys = model_.MakePrompt(prompt);
  TimePoint begin = SteadyClock::Get().Now();
  const ReadOutcome read =
      Read(*client_, model_, keys,
           {.match_deadline = seconds(2), .fetch_deadline = seconds(10), .progress = seconds(5)});
  std::string failure;
  if (!read.status.ok()) {
    failure = CodeOf("read", read.status);
  } else if (read.failed_blocks > 0) {
    failure = "read: failed blocks:";
    for (size_t i = 0; i < read.misses.size(); ++i) {
      const auto reason = static_cast<client::MissReason>(i);
      if (read.misses[i] > 0) failure += fmt::format(" {}", Name(reason));
    }
  }
  Note("read", begin, failure, read.wrong, read.complete_blocks);
  if (!failure.empty() || read.matched_blocks >= keys.size()) return;

  begin = SteadyClock::Get().Now();
  const WriteOutcome write =
      Write(*client_, model_, keys, read.matched_blocks, model_.whole(), seconds(5));
  if (!write.status.ok()) failure = CodeOf("write", write.status);
  if (write.refused_parts > 0) failure = CodeOf("write refused", write.refused);
  Note("write", begin, failure, {}, 0);
  if (!failure.empty()) return;

  // Who was told that his block is stored finds it.
  begin = SteadyClock::Get().Now();
  const auto match =
      client_->Match(model_.fingerprint(), keys, {.deadline = seconds(2), .lease = false});
  if (!match.ok()) {
    failure = CodeOf("read back", match.status());
  } else if (match->matched_blocks < keys.size()) {
    failure = fmt::format("read back: stored, but not there: {}", Name(match->miss_reason));
  }
  Note("read back", begin, failure, {}, 0);
}

void HonestLoad::Note(const char* what, TimePoint begin, const std::string& failure,
                      const std::vector<std::string>& wrong, uint64_t blocks) {
  const TimePoint end = SteadyClock::Get().Now();
  const bool away = node_.WasAwayOnPurpose(begin, end);
  MutexLock lock(mu_);
  for (const std::string& text : wrong) {
    if (window_.wrong.size() < kMaxWrongTexts) window_.wrong.push_back(text);
  }
  if (away) return;
  ++window_.calls;
  if (options_.path != client::PathChoice::kGrpc) ++window_.local_calls;
  const double took = Seconds(end - begin) * 1e3;
  window_.milliseconds.push_back(took);
  if (took > window_.longest_ms) {
    window_.longest_ms = took;
    window_.slowest = fmt::format("{} of {}", what, options_.tenant);
    if (!failure.empty()) window_.slowest += ", which failed: " + failure;
  }
  window_.read_blocks += blocks;
  if (failure.empty()) return;
  ++window_.failed;
  ++window_.failures[failure];
}

}  // namespace cairn::fault
