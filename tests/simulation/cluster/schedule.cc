#include "tests/simulation/cluster/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace cairn::testing {
namespace {

using Kind = ClusterEvent::Kind;

constexpr std::pair<Kind, const char*> kNamesOfKinds[] = {
    {Kind::kStore, "kStore"},
    {Kind::kGet, "kGet"},
    {Kind::kBump, "kBump"},
    {Kind::kDrop, "kDrop"},
    {Kind::kCut, "kCut"},
    {Kind::kIsolate, "kIsolate"},
    {Kind::kPartition, "kPartition"},
    {Kind::kHeal, "kHeal"},
    {Kind::kPause, "kPause"},
    {Kind::kResume, "kResume"},
    {Kind::kKill, "kKill"},
    {Kind::kStart, "kStart"},
    {Kind::kCopyDisk, "kCopyDisk"},
    {Kind::kClone, "kClone"},
    {Kind::kLeave, "kLeave"},
    {Kind::kNames, "kNames"},
    {Kind::kSlowLink, "kSlowLink"},
    {Kind::kLoss, "kLoss"},
    {Kind::kClockRate, "kClockRate"},
    {Kind::kLie, "kLie"},
    {Kind::kFalseHello, "kFalseHello"},
    {Kind::kDisk, "kDisk"},
};

// How often each fault comes, among all.
constexpr std::pair<Kind, uint32_t> kFaults[] = {
    {Kind::kBump, 12},     {Kind::kDrop, 2},   {Kind::kCut, 8},        {Kind::kIsolate, 4},
    {Kind::kPartition, 4}, {Kind::kHeal, 12},  {Kind::kPause, 8},      {Kind::kResume, 12},
    {Kind::kKill, 8},      {Kind::kStart, 14}, {Kind::kCopyDisk, 3},   {Kind::kClone, 2},
    {Kind::kLeave, 3},     {Kind::kNames, 10}, {Kind::kSlowLink, 4},   {Kind::kLoss, 5},
    {Kind::kClockRate, 3}, {Kind::kLie, 4},    {Kind::kFalseHello, 5}, {Kind::kDisk, 5},
};

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}
  uint32_t Below(uint64_t limit) { return static_cast<uint32_t>(random_() % limit); }
  Kind Fault() {
    uint32_t total = 0;
    for (const auto& [kind, weight] : kFaults) total += weight;
    uint32_t at = Below(total);
    for (const auto& [kind, weight] : kFaults) {
      if (at < weight) return kind;
      at -= weight;
    }
    return Kind::kHeal;
  }
  ClusterEvent Event(size_t machines) {
    ClusterEvent event;
    event.a = Below(machines);
    const uint32_t what = Below(100);
    if (what < 35) {
      event.kind = Kind::kStore;
      event.b = Below(12);
      event.c = 1 + Below(64);
      return event;
    }
    if (what < 75) {
      event.kind = Kind::kGet;
      event.b = Below(12);
      event.c = 1 + Below(64);
      return event;
    }
    event.kind = Fault();
    switch (event.kind) {
      case Kind::kBump:
      case Kind::kDrop:
        event.b = Below(2);
        break;
      case Kind::kCut:
      case Kind::kClone:
      case Kind::kFalseHello:
        event.b = Below(machines);
        break;
      case Kind::kKill:
        event.b = Below(3);
        break;
      case Kind::kDisk:
        event.b = Below(4);
        event.c = 1 + Below(10);
        break;
      case Kind::kPartition:
        event.b = 1 + Below(2);
        break;
      case Kind::kStart:
        event.b = Below(4) == 0 ? 1 + Below(2) : 0;
        break;
      case Kind::kNames:
        event.b = Below(7);
        event.c = Below(4) == 0 ? 1 : 0;
        break;
      case Kind::kSlowLink:
        event.b = 5 + Below(100);
        break;
      case Kind::kLoss:
        event.b = Below(3) == 0 ? 0 : Below(100);
        event.c = Below(100);
        break;
      case Kind::kClockRate:
        event.b = 900 + Below(200);
        break;
      case Kind::kLie:
        event.b = Below(2);
        break;
      default:
        break;
    }
    return event;
  }

 private:
  std::mt19937_64 random_;
};

// The first fault, without when and where. Empty: nothing.
std::string KindOfFailure(const ClusterSchedule& schedule) {
  const PlayResult result = Play(schedule);
  if (result.wrong.empty()) return "";
  std::string kind = result.wrong.front();
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  return kind;
}

}  // namespace

ClusterSchedule MakeSchedule(uint64_t seed, size_t machines, Duration length) {
  Maker maker(seed);
  ClusterSchedule schedule{.seed = seed, .length = length};
  schedule.machines = machines != 0 ? machines : 3 + maker.Below(6);
  if (machines == 0 && maker.Below(20) == 0) schedule.machines = 16 + maker.Below(16);
  schedule.started = std::max<size_t>(2, schedule.machines - 1 - maker.Below(2));
  // Some clusters see few faults close to each other, others many.
  const Duration gap = std::chrono::milliseconds(100 + maker.Below(500));
  Duration at{0};
  while (true) {
    at += Duration(maker.Below(gap.count()));
    if (at >= length) break;
    ClusterEvent event = maker.Event(schedule.machines);
    event.at = at;
    schedule.events.push_back(event);
  }
  return schedule;
}

ClusterSchedule Shorten(ClusterSchedule schedule, size_t plays) {
  const std::string kind = KindOfFailure(schedule);
  // First large parts, then single events.
  for (size_t part = schedule.events.size() / 2; part >= 1; part /= 2) {
    bool shorter = true;
    while (shorter && plays > 0) {
      shorter = false;
      for (size_t at = 0; at < schedule.events.size() && plays > 0;) {
        ClusterSchedule without = schedule;
        const auto first = without.events.begin() + static_cast<ptrdiff_t>(at);
        without.events.erase(
            first, first + static_cast<ptrdiff_t>(std::min(part, schedule.events.size() - at)));
        --plays;
        if (KindOfFailure(without) == kind) {
          schedule = std::move(without);
          shorter = true;
        } else {
          at += part;
        }
      }
      if (part > 1) break;
    }
  }
  return schedule;
}

std::string ToText(const ClusterSchedule& schedule) {
  std::string text = fmt::format(
      "Play({{.seed = {}, .machines = {}, .started = {}, .length = milliseconds({}), "
      ".whole = {}, .events = {{\n",
      schedule.seed, schedule.machines, schedule.started,
      std::chrono::duration_cast<std::chrono::milliseconds>(schedule.length).count(),
      schedule.whole);
  for (const ClusterEvent& event : schedule.events) {
    const auto* const name =
        std::find_if(std::begin(kNamesOfKinds), std::end(kNamesOfKinds),
                     [&](const auto& entry) { return entry.first == event.kind; });
    text += fmt::format("    {{Kind::{}, nanoseconds({}), {}, {}, {}}},\n", name->second,
                        event.at.count(), event.a, event.b, event.c);
  }
  return text + "}});\n";
}

}  // namespace cairn::testing
