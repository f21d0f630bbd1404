#include "tests/fault/adversary/runner.h"

#include <algorithm>
#include <cstdio>

#include "common/metrics/admin_server.h"
#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

// What the node needs beside the items that have a setting (docs/operate/operations.md).
constexpr uint64_t kProcessBytes = 196ull << 20;
constexpr size_t kRecipesAtOnce = 3;
constexpr uint64_t kManyBlocks = 100;    // In host.
constexpr size_t kMostNotes = 20;        // Of a recipe, in the summary.
constexpr double kLongestYardstick = 8;  // Seconds.
// The yardstick counts when each of its clients has begun with so many prompts.
constexpr uint64_t kFirstPrompts = 16;
constexpr milliseconds kLongestStart = seconds(30);
// A pass may end after its round, by this much.
constexpr Duration kGrace = seconds(15);
constexpr Duration kLongestAlone = seconds(90);
constexpr double kLongestEnd = 10;  // Seconds from a stop to the end of a pass.
// Fewer honest calls than this share of the yardstick's rate: the node serves nobody.
constexpr double kLeastRate = 0.1;
// Milliseconds. A call over nothing that takes longer waited for somebody else's.
constexpr double kLongestCall = 1500;
// No 99th percentile below this is a finding: it is the machine.
constexpr double kSmallestP99 = 250;

TimePoint Now() { return SteadyClock::Get().Now(); }

Result<uint64_t> AccountOf(const TestedNode& node) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         metrics::HttpGet(node.admin(), "/metrics", seconds(60)));
  constexpr std::string_view kName = "cairn_memory_bound_bytes{";
  double sum = 0;
  for (size_t at = text.find(kName); at != std::string::npos; at = text.find(kName, at + 1)) {
    const size_t end = std::min(text.find('\n', at), text.size());
    sum += std::strtod(text.c_str() + text.rfind(' ', end) + 1, nullptr);
  }
  if (sum == 0) return Errorf(StatusCode::kNotFound, "/metrics: no cairn_memory_bound_bytes");
  return static_cast<uint64_t>(sum) + kProcessBytes;
}

std::string NamesOf(const std::vector<const Recipe*>& recipes) {
  std::string names;
  for (const Recipe* recipe : recipes) {
    names += (names.empty() ? "" : " + ") + std::string(recipe->name);
  }
  return names;
}

// "; 12 x read UNAVAILABLE: ..."
std::string WhyOf(const HonestWindow& window) {
  std::string why;
  for (const auto& [text, count] : window.failures) {
    if (why.size() < 300) why += fmt::format("; {} x {}", count, text);
  }
  return why;
}

// Each text once.
void AddOnce(const std::string& text, std::vector<std::string>* to) {
  if (std::find(to->begin(), to->end(), text) == to->end()) to->push_back(text);
}

}  // namespace

void Runner::Say(const std::string& text) const {
  if (options_.quiet) return;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

Status Runner::StartNode() {
  CAIRN_ASSIGN_OR_RETURN(
      node_, TestedNode::Start({.directory = directory_.path(), .args = SmallNodeArgs()}));
  CAIRN_ASSIGN_OR_RETURN(report_.account_bytes, AccountOf(*node_));
  operator_ = ConnectTo(node_->address(), "operator");
  for (const auto& [tenant, path] : {std::pair("honest-grpc", client::PathChoice::kGrpc),
                                     std::pair("honest-local", client::PathChoice::kAuto)}) {
    honest_.push_back(std::make_unique<HonestLoad>(
        node_.get(), HonestLoad::Options{.tenant = tenant, .path = path, .seed = random_()}));
  }
  liveness_ = std::make_unique<Liveness>(node_.get());
  return OkStatus();
}

HonestWindow Runner::TakeHonest() {
  HonestWindow window;
  for (const auto& load : honest_) window.Add(load->TakeWindow());
  return window;
}

void Runner::MeasureYardstick() {
  // A second honest client where hostile ones will be: 8 calls in flight, at full speed.
  std::vector<std::unique_ptr<HonestLoad>> second;
  for (const auto& [tenant, path] : {std::pair("second-grpc", client::PathChoice::kGrpc),
                                     std::pair("second-local", client::PathChoice::kAuto)}) {
    second.push_back(
        std::make_unique<HonestLoad>(node_.get(), HonestLoad::Options{.tenant = tenant,
                                                                      .path = path,
                                                                      .threads = 4,
                                                                      .seed = random_(),
                                                                      .pause = Duration{0}}));
  }
  // Connections, the first blocks.
  CAIRN_CHECK(WaitUntil(
      [&second] {
        return std::all_of(second.begin(), second.end(),
                           [](const auto& load) { return load->next_prompt() >= kFirstPrompts; });
      },
      kLongestStart));
  (void)TakeHonest();
  (void)liveness_->TakeWindow();
  const double lasts = std::clamp(options_.seconds / 5, 3.0, kLongestYardstick);
  std::this_thread::sleep_for(std::chrono::duration<double>(lasts));
  const HonestWindow window = TakeHonest();
  report_.yardstick_p99_ms = window.Quantile(0.99);
  report_.yardstick_calls_per_second = static_cast<double>(window.calls) / lasts;
  Say(fmt::format("yardstick: p99 {:.1f} ms, {:.0f} calls/s, success {:.2f} %{}",
                  report_.yardstick_p99_ms, report_.yardstick_calls_per_second,
                  window.SuccessRate() * 100, WhyOf(window)));
}

void Runner::CheckHonest(const std::vector<const Recipe*>& recipes, const HonestWindow& window,
                         double lasted, std::vector<std::string>* found) {
  double success = 1, ratio = 0;
  for (const Recipe* recipe : recipes) {
    success = std::min(success, recipe->success);
    ratio += recipe->p99_ratio;
  }
  report_.calls += window.calls;
  report_.local_calls += window.local_calls;
  report_.read_blocks += window.read_blocks;
  report_.wrong += window.wrong.size();
  for (const std::string& text : window.wrong) found->push_back("wrong byte: " + text);
  // A recipe that is alone stops honest clients, so it may leave them little time.
  const double expected = report_.yardstick_calls_per_second * lasted * kLeastRate;
  if (!recipes[0]->alone && static_cast<double>(window.calls) < expected) {
    found->push_back(fmt::format("only {} honest calls in {:.0f} s, expected at least {:.0f}",
                                 window.calls, lasted, expected));
  }
  if (window.calls == 0) return;
  if (window.SuccessRate() < success) {
    found->push_back(fmt::format("{:.2f} % of {} honest calls succeeded, expected {:.1f} %{}",
                                 window.SuccessRate() * 100, window.calls, success * 100,
                                 WhyOf(window)));
  }
  const double p99 = window.Quantile(0.99);
  const double most = std::max(kSmallestP99, ratio * report_.yardstick_p99_ms);
  if (p99 > most) {
    found->push_back(
        fmt::format("p99 of honest calls {:.0f} ms, expected at most {:.0f} ms ({:.0f} "
                    "times the yardstick's)",
                    p99, most, ratio));
  }
  if (!recipes[0]->alone && window.longest_ms > kLongestCall) {
    found->push_back(fmt::format("an honest call took {:.0f} ms, expected at most {:.0f} ms: {}",
                                 window.longest_ms, kLongestCall, window.slowest));
  }
  for (const Recipe* recipe : recipes) {
    RecipeReport& report = report_.recipes[std::string(recipe->name)];
    report.calls += window.calls;
    report.failed += window.failed;
    report.worst_success = std::min(report.worst_success, window.SuccessRate());
    report.worst_p99_ms = std::max(report.worst_p99_ms, p99);
  }
}

std::string Runner::Settle() {
  for (const auto& load : honest_) load->Pause();
  std::string held = StillHeld(*operator_, 1 + honest_.size(), milliseconds(20'000));
  if (!held.empty()) held = "still held 20 s after all hostile clients are gone: " + held;
  in_host_.clear();
  const auto admin = client::ConnectAdmin({.address = node_->address()});
  const auto namespaces = (*admin)->ListNamespaces("", {.deadline = seconds(10)});
  if (namespaces.ok()) {
    for (const client::NamespaceInfo& info : *namespaces) {
      if (info.host_blocks < kManyBlocks) continue;
      in_host_ += fmt::format("; {} has {} blocks, and {} MiB of its own", info.spec.tenant,
                              info.host_blocks, info.tenant_host_bytes >> 20);
    }
  }
  DropHostileTenants(node_->address());
  (void)TakeHonest();
  for (const auto& load : honest_) load->Continue();
  return held;
}

// Long: one round from its players' start to their findings, in order.
std::vector<std::string> Runner::CheckRound(const std::vector<const Recipe*>& recipes,
                                            const HonestWindow& window,
                                            const Liveness::Window& probes, double lasted) {
  std::vector<std::string> found;
  CheckHonest(recipes, window, lasted, &found);
  report_.probes += probes.probes;
  report_.red_probes += probes.red;
  if (probes.red > 0) {
    found.push_back(fmt::format("/livez was red {} of {} times: {}", probes.red, probes.probes,
                                probes.last_error));
  }
  if (const uint64_t deaths = node_->deaths(); deaths != std::exchange(deaths_, deaths)) {
    found.push_back("the node died: " + node_->last_death());
  }
  const uint64_t peak = node_->peak_bytes();
  if (peak > std::exchange(peak_, peak) && peak > MostMemory()) {
    found.push_back(
        fmt::format("peak memory grew to {} MiB, expected at most the account's {} MiB "
                    "and 5 %",
                    peak >> 20, report_.account_bytes >> 20));
  }
  if (const std::string held = Settle(); !held.empty()) found.push_back(held);
  return found;
}

void Runner::RunRound(const std::vector<const Recipe*>& recipes, double round_seconds) {
  struct Player {
    Findings findings;
    std::atomic<uint64_t> passes{0};
    std::jthread thread;
  };
  const bool alone = recipes[0]->alone;
  (void)TakeHonest();
  const TimePoint begin = Now();
  std::stop_source stop;
  std::vector<std::unique_ptr<Player>> players;
  std::vector<HonestLoad*> loads;
  for (const auto& load : honest_) loads.push_back(load.get());
  for (const Recipe* recipe : recipes) {
    players.push_back(std::make_unique<Player>());
    Player& player = *players.back();
    player.thread = std::jthread([&, recipe, seed = random_()] {
      std::mt19937_64 seeds(seed);
      do {
        Scene scene(node_.get(), loads, stop.get_token(), seeds(), &player.findings);
        recipe->run(scene);
        ++player.passes;
      } while (!alone && !stop.stop_requested());
    });
  }
  const auto all_passed = [&] {
    return std::all_of(players.begin(), players.end(),
                       [](const auto& player) { return player->passes > 0; });
  };
  if (!alone) std::this_thread::sleep_for(std::chrono::duration<double>(round_seconds));
  WaitUntil(all_passed, std::chrono::duration_cast<milliseconds>(alone ? kLongestAlone : kGrace));
  stop.request_stop();
  const TimePoint told = Now();
  for (size_t i = 0; i < players.size(); ++i) {
    players[i]->thread.join();
    // By then the calls of a pass have ended, which its stop cancels.
    if (const double took = Seconds(Now() - told); !alone && took > kLongestEnd) {
      players[i]->findings.Add(fmt::format("its pass ended {:.0f} s after it was stopped", took));
    }
  }
  for (const auto& load : honest_) load->Continue();
  node_->StopReadingLog(false);
  const HonestWindow window = TakeHonest();

  const double lasted = Seconds(Now() - begin);
  const Liveness::Window probes = liveness_->TakeWindow();
  const std::vector<std::string> found = CheckRound(recipes, window, probes, lasted);
  for (size_t i = 0; i < recipes.size(); ++i) {
    RecipeReport& report = report_.recipes[std::string(recipes[i]->name)];
    report.passes += players[i]->passes;
    ++report.rounds;
    for (const std::string& note : players[i]->findings.Notes()) {
      if (report.notes.size() < kMostNotes) AddOnce(note, &report.notes);
    }
    for (const std::string& text : players[i]->findings.Take()) {
      AddOnce(text, &report.findings);
      AddOnce(fmt::format("{}: {}", recipes[i]->name, text), &report_.findings);
    }
    for (const std::string& text : found) AddOnce(text, &report.findings);
  }
  for (const std::string& text : found) {
    AddOnce(fmt::format("{}: {}", NamesOf(recipes), text), &report_.findings);
  }
  Say(fmt::format(
      "{:5.0f} s  {}: {} honest calls, success {:.2f} %, p99 {:.1f} ms, livez at most "
      "{:.0f} ms, peak {} MiB{}",
      Seconds(Now() - begin), NamesOf(recipes), window.calls, window.SuccessRate() * 100,
      window.Quantile(0.99), probes.slowest_ms, node_->peak_bytes() >> 20, WhyOf(window)));
  for (const std::string& text : found) Say("    " + text);
  if (!found.empty() && !in_host_.empty()) Say("    in host" + in_host_);
}

// A shuffled deck: recipes that can run together in hands of some, the others one by one.
std::vector<std::vector<const Recipe*>> Runner::Deal() {
  std::vector<const Recipe*> deck = options_.recipes;
  std::shuffle(deck.begin(), deck.end(), random_);
  std::vector<std::vector<const Recipe*>> hands;
  std::vector<const Recipe*> hand;
  for (const Recipe* recipe : deck) {
    if (recipe->alone) {
      hands.push_back({recipe});
      continue;
    }
    hand.push_back(recipe);
    if (hand.size() == kRecipesAtOnce) hands.push_back(std::exchange(hand, {}));
  }
  if (!hand.empty()) hands.push_back(hand);
  return hands;
}

void Runner::Finish() {
  for (const auto& load : honest_) load->Pause();
  const Result<client::NodeStats> stats = operator_->Stat({.deadline = seconds(5)});
  if (!stats.ok()) {
    report_.findings.push_back("the node does not answer at the end: " + ToString(stats.status()));
  }
  report_.deaths = node_->deaths();
  report_.peak_bytes = node_->peak_bytes();
  if (report_.peak_bytes > MostMemory()) {
    report_.findings.push_back(
        fmt::format("peak memory {} MiB, expected at most the account's {} "
                    "MiB and 5 %",
                    report_.peak_bytes >> 20, report_.account_bytes >> 20));
  }
  liveness_.reset();
  honest_.clear();
  operator_.reset();
  const Status stopped = node_->Stop();
  if (!stopped.ok()) report_.findings.push_back(ToString(stopped));
}

Result<Report> Runner::Run() {
  const TimePoint begin = Now();
  report_.seed = options_.seed;
  CAIRN_RETURN_IF_ERROR(StartNode());
  MeasureYardstick();
  if (const std::string held = Settle(); !held.empty()) report_.findings.push_back(held);
  for (bool first = true; first || Seconds(Now() - begin) < options_.seconds; first = false) {
    const std::vector<std::vector<const Recipe*>> hands = Deal();
    // What is left, divided by what is left to play.
    for (size_t i = 0; i < hands.size(); ++i) {
      const double left = options_.seconds - Seconds(Now() - begin);
      const double each = left / static_cast<double>(hands.size() - i) - 2;
      // Each recipe has its turn once, also when the time is over.
      if (!first && left <= 0) break;
      RunRound(hands[i], std::clamp(each, 3.0, 30.0));
    }
  }
  Finish();
  report_.seconds = Seconds(Now() - begin);
  return std::move(report_);
}

}  // namespace cairn::fault
