#include "tests/fault/adversary/runner.h"

#include <algorithm>
#include <cstdio>

#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

constexpr size_t kRecipesAtOnce = 3;
constexpr size_t kMostNotes = 20;        // Of a recipe, in the summary.
constexpr double kLongestYardstick = 8;  // Seconds.
// The yardstick counts when each of its clients has made so many calls.
constexpr uint64_t kFirstCalls = 40;
constexpr milliseconds kLongestStart = seconds(60);
// A pass may end after its round, by this much.
constexpr Duration kGrace = seconds(15);
constexpr Duration kLongestAlone = seconds(90);
constexpr double kLongestEnd = 10;  // Seconds from a stop to the end of a pass.
// In flight in the hostile clients' place, over all ports.
constexpr uint32_t kSecondCalls = 8;
// Fewer honest calls than this share of the yardstick's rate: a port serves nobody.
constexpr double kLeastRate = 0.1;
// Other programs may take this share of the processors. A round in which they took more is judged
// by all but its time: this test must not fail because a machine has something else to do.
constexpr double kMostForeign = 0.2;
// Nor because it stood still for longer than this.
constexpr Duration kLongestPause = milliseconds(250);
constexpr milliseconds kLongestHeld = seconds(60);  // Only a machine without time needs so long.

TimePoint Now() { return SteadyClock::Get().Now(); }

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

struct Runner::Player {
  Findings findings;
  std::atomic<uint64_t> passes{0};
  std::jthread thread;
};

void Runner::Say(const std::string& text) const {
  if (options_.quiet) return;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void Runner::StartHonest() {
  for (const std::string& port : stage_->ports()) {
    honest_.push_back(stage_->NewLoad(port, {.name = "honest-" + port, .seed = random_()}));
  }
  for (const WatchedServer& watched : stage_->servers()) {
    liveness_.push_back(std::make_unique<Liveness>(watched.server.get()));
    report_.servers[watched.name].account_bytes = watched.account_bytes;
  }
}

Runner::Windows Runner::TakeHonest() {
  Windows windows;
  for (const auto& load : honest_) windows[load->options().port] = load->TakeWindow();
  return windows;
}

void Runner::MeasureYardstick() {
  // A second honest client where hostile ones will be, at full speed.
  std::vector<std::unique_ptr<HonestLoad>> second;
  const std::vector<std::string> ports = stage_->ports();
  const uint32_t threads = std::max(1U, kSecondCalls / static_cast<uint32_t>(ports.size()));
  for (const std::string& port : ports) {
    second.push_back(
        stage_->NewLoad(port, {.name = "second-" + port, .seed = random_(), .threads = threads}));
  }
  // Connections, the first blocks.
  CAIRN_CHECK(WaitUntil(
      [&second] {
        return std::all_of(second.begin(), second.end(),
                           [](const auto& load) { return load->calls() >= kFirstCalls; });
      },
      kLongestStart));
  (void)TakeHonest();
  const double lasts = std::clamp(options_.seconds / 5, 3.0, kLongestYardstick);
  std::this_thread::sleep_for(std::chrono::duration<double>(lasts));
  for (const auto& [name, window] : TakeHonest()) {
    PortReport& port = report_.ports[name];
    port.yardstick_p99_ms = window.Quantile(0.99);
    port.yardstick_calls_per_second = static_cast<double>(window.calls) / lasts;
    for (const std::string& text : window.wrong) {
      AddOnce(fmt::format("wrong at {}, beside honest clients: {}", name, text), &report_.findings);
    }
    Say(fmt::format("yardstick of {}: p99 {:.1f} ms, {:.0f} calls/s, success {:.2f} %{}", name,
                    port.yardstick_p99_ms, port.yardstick_calls_per_second,
                    window.SuccessRate() * 100, WhyOf(window)));
  }
  std::vector<std::string> ignored;
  TakeProbes(&ignored);
}

void Runner::CheckPort(const std::vector<const Recipe*>& recipes, const HonestLoad& load,
                       const HonestWindow& window, double lasted, Found* found) {
  double success = 1, ratio = 0;
  for (const Recipe* recipe : recipes) {
    success = std::min(success, recipe->success);
    ratio += recipe->p99_ratio;
  }
  const std::string& name = load.options().port;
  PortReport& port = report_.ports[name];
  port.calls += window.calls;
  port.wrong += window.wrong.size();
  report_.read_blocks += window.read_blocks;
  for (const std::string& text : window.wrong) {
    found->certain.push_back(fmt::format("wrong at {}: {}", name, text));
  }
  if (machine_busy_) return;
  // A recipe that is alone stops honest clients, so it may leave them little time.
  const double expected = port.yardstick_calls_per_second * lasted * kLeastRate;
  if (!recipes[0]->alone && static_cast<double>(window.calls) < expected) {
    found->timed.push_back(
        fmt::format("only {} honest calls at {} in {:.0f} s, expected at least {:.0f}",
                    window.calls, name, lasted, expected));
  }
  if (window.calls == 0) return;
  if (window.SuccessRate() < success) {
    found->timed.push_back(
        fmt::format("{:.2f} % of {} honest calls at {} succeeded, expected {:.1f} %{}",
                    window.SuccessRate() * 100, window.calls, name, success * 100, WhyOf(window)));
  }
  const double longest = Seconds(load.options().longest_call) * 1e3;
  const double p99 = window.Quantile(0.99);
  port.worst_p99_ms = std::max(port.worst_p99_ms, p99);
  const double most = std::max(longest / 6, ratio * port.yardstick_p99_ms);
  if (p99 > most) {
    found->timed.push_back(
        fmt::format("p99 of honest calls at {} {:.0f} ms, expected at most {:.0f} ms ({:.0f} times "
                    "the yardstick's)",
                    name, p99, most, ratio));
  }
  if (!recipes[0]->alone && window.longest_ms > longest) {
    found->timed.push_back(
        fmt::format("an honest call took {:.0f} ms, expected at most {:.0f} ms: {}",
                    window.longest_ms, longest, window.slowest));
  }
  for (const Recipe* recipe : recipes) {
    RecipeReport& report = report_.recipes[std::string(recipe->name)];
    report.calls += window.calls;
    report.failed += window.failed;
    report.worst_success = std::min(report.worst_success, window.SuccessRate());
    const double times = port.yardstick_p99_ms > 0 ? p99 / port.yardstick_p99_ms : 0;
    if (times <= report.worst_p99) continue;
    report.worst_p99 = times;
    report.worst_port = name;
  }
}

std::string Runner::Settle() {
  for (const auto& load : honest_) load->Pause();
  std::string held = stage_->StillHeld(honest_.size(), kLongestHeld);
  if (!held.empty()) held = "still held a minute after all hostile clients are gone: " + held;
  holders_ = stage_->Holders();
  stage_->DropHostile();
  (void)TakeHonest();
  for (const auto& load : honest_) load->Continue();
  return held;
}

void Runner::TakeProbes(std::vector<std::string>* found) {
  for (size_t i = 0; i < liveness_.size(); ++i) {
    const Liveness::Window probes = liveness_[i]->TakeWindow();
    report_.probes += probes.probes;
    report_.red_probes += probes.red;
    if (probes.red == 0 || machine_busy_) continue;
    found->push_back(fmt::format("/livez of {} was red {} of {} times: {}",
                                 stage_->servers()[i].name, probes.red, probes.probes,
                                 probes.last_error));
  }
}

void Runner::CheckServers(std::vector<std::string>* found) {
  for (const auto& [name, server, account] : stage_->servers()) {
    ServerReport& report = report_.servers[name];
    const uint64_t deaths = server->deaths();
    if (deaths != std::exchange(report.deaths, deaths)) {
      found->push_back(fmt::format("{} died: {}", name, server->last_death()));
    }
    const uint64_t peak = server->peak_bytes();
    if (peak > std::exchange(report.peak_bytes, peak) && peak > account + account / 20) {
      found->push_back(
          fmt::format("peak memory of {} grew to {} MiB, expected at most the "
                      "account's {} MiB and 5 %",
                      name, peak >> 20, account >> 20));
    }
  }
}

Runner::Found Runner::CheckRound(const std::vector<const Recipe*>& recipes, const Windows& windows,
                                 double lasted) {
  Found found;
  for (const auto& load : honest_) {
    CheckPort(recipes, *load, windows.at(load->options().port), lasted, &found);
  }
  TakeProbes(&found.timed);
  CheckServers(&found.certain);
  if (const std::string held = Settle(); !held.empty()) found.certain.push_back(held);
  return found;
}

std::vector<std::unique_ptr<Runner::Player>> Runner::StartPlayers(
    const std::vector<const Recipe*>& recipes, const std::stop_source& stop) {
  std::vector<HonestLoad*> loads;
  for (const auto& load : honest_) loads.push_back(load.get());
  std::vector<std::unique_ptr<Player>> players;
  for (const Recipe* recipe : recipes) {
    players.push_back(std::make_unique<Player>());
    Player& player = *players.back();
    player.thread = std::jthread([this, &player, recipe, loads, stop, seed = random_()] {
      std::mt19937_64 seeds(seed);
      do {
        Scene scene(stage_->places(), loads, stop.get_token(), seeds(), &player.findings);
        recipe->run(scene);
        ++player.passes;
      } while (!recipe->alone && !stop.stop_requested());
    });
  }
  return players;
}

void Runner::NoteRound(const std::vector<const Recipe*>& recipes,
                       const std::vector<std::unique_ptr<Player>>& players,
                       const std::vector<std::string>& found) {
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
}

bool Runner::RunRound(const std::vector<const Recipe*>& recipes, double round_seconds, bool again) {
  const bool alone = recipes[0]->alone;
  (void)TakeHonest();
  (void)foreign_.Take();
  (void)pauses_.Take();
  const TimePoint begin = Now();
  std::stop_source stop;
  const std::vector<std::unique_ptr<Player>> players = StartPlayers(recipes, stop);
  const auto all_passed = [&] {
    return std::all_of(players.begin(), players.end(),
                       [](const auto& player) { return player->passes > 0; });
  };
  if (!alone) std::this_thread::sleep_for(std::chrono::duration<double>(round_seconds));
  WaitUntil(all_passed, std::chrono::duration_cast<milliseconds>(alone ? kLongestAlone : kGrace));
  stop.request_stop();
  const TimePoint told = Now();
  for (const auto& player : players) {
    player->thread.join();
    // By then the calls of a pass have ended, which its stop cancels.
    if (const double took = Seconds(Now() - told); !alone && took > kLongestEnd) {
      player->findings.Add(fmt::format("its pass ended {:.0f} s after it was stopped", took));
    }
  }
  for (const auto& load : honest_) load->Continue();
  for (const WatchedServer& watched : stage_->servers()) watched.server->StopReadingLog(false);

  const Windows windows = TakeHonest();
  const double lasted = Seconds(Now() - begin);
  const double foreign = foreign_.Take();
  const Duration pause = pauses_.Take();
  machine_busy_ = foreign > kMostForeign || pause > kLongestPause;
  ++report_.rounds;
  report_.busy_rounds += machine_busy_;
  if (machine_busy_) {
    Say(fmt::format("other programs took {:.0f} % of the processors, and nothing ran for {:.0f} ms",
                    foreign * 100, Seconds(pause) * 1e3));
  }
  Found checked = CheckRound(recipes, windows, lasted);
  const bool in_time = checked.timed.empty();
  std::vector<std::string> found = std::move(checked.certain);
  if (again) found.insert(found.end(), checked.timed.begin(), checked.timed.end());
  NoteRound(recipes, players, found);
  Say(fmt::format("{:5.0f} s  {}", Seconds(Now() - begin), NamesOf(recipes)));
  for (const auto& [port, window] : windows) {
    Say(fmt::format("         {:14} {:>6} calls, success {:.2f} %, p99 {:.1f} ms{}", port,
                    window.calls, window.SuccessRate() * 100, window.Quantile(0.99),
                    WhyOf(window)));
  }
  for (const std::string& text : found) Say("    " + text);
  if (!again) {
    for (const std::string& text : checked.timed) Say("    once: " + text);
  }
  if (!(found.empty() && in_time) && !holders_.empty()) Say("    in host" + holders_);
  return in_time;
}

void Runner::Play(const std::vector<const Recipe*>& recipes, double round_seconds) {
  if (RunRound(recipes, round_seconds, false)) return;
  ++report_.repeated_rounds;
  MeasureYardstick();
  (void)RunRound(recipes, round_seconds, true);
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
  if (const std::string silent = stage_->Silent(); !silent.empty()) {
    report_.findings.push_back("no answer at the end: " + silent);
  }
  CheckServers(&report_.findings);
  liveness_.clear();
  honest_.clear();
  for (const WatchedServer& watched : stage_->servers()) {
    const Status stopped = watched.server->Stop();
    if (!stopped.ok()) report_.findings.push_back(watched.name + ": " + ToString(stopped));
  }
}

Report Runner::Run() {
  const TimePoint begin = Now();
  report_.seed = options_.seed;
  StartHonest();
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
      Play(hands[i], std::clamp(each, 3.0, 30.0));
    }
  }
  Finish();
  report_.seconds = Seconds(Now() - begin);
  return std::move(report_);
}

}  // namespace cairn::fault
