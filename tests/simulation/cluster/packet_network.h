#pragma once
// The network between machines: how long packets take, which are lost, and how links are shared.

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/simulation/cluster/agenda.h"

namespace cairn::testing {

// Machines are numbers. Not thread-safe.
class PacketNetwork {
 public:
  struct Options {
    Duration delay = std::chrono::microseconds(100);   // The delay of each packet,
    Duration jitter = std::chrono::microseconds(200);  // and at most so much more: they overtake.
    double loss = 0;                                   // Share of messages that are never answered.
    double duplicates = 0;                             // Share of requests that arrive twice.
    double bytes_per_second = 125e6;                   // The rate of a machine's link, each way.
  };
  PacketNetwork(const Agenda* agenda, size_t machines, uint64_t seed, Options options)
      : agenda_(*agenda), random_(seed), options_(options), links_(machines) {
    for (Link& link : links_) link.bytes_per_second = options.bytes_per_second;
  }
  Options& options() { return options_; }

  void Cut(size_t from, size_t to) { cuts_.insert({from, to}); }
  void HealAll() { cuts_.clear(); }
  bool IsCut(size_t from, size_t to) const { return cuts_.contains({from, to}); }
  void SetSpeed(size_t machine, double bytes_per_second) {
    links_[machine].bytes_per_second = bytes_per_second;
  }

  // How long a small message takes. nullopt: it is lost.
  std::optional<Duration> Travel(size_t from, size_t to) {
    const Duration time = options_.delay + Duration(Below(options_.jitter.count() + 1));
    if (IsCut(from, to) || Happens(options_.loss)) return std::nullopt;
    return time;
  }
  bool Duplicates() { return Happens(options_.duplicates); }

  struct Passage {
    TimePoint sent, arrived;
  };
  // A piece of a stream goes over both links, behind what is on them already.
  Passage Send(size_t from, size_t to, uint64_t bytes) {
    Link& out = links_[from];
    Link& in = links_[to];
    const auto time = [&](const Link& link) {
      return std::chrono::duration_cast<Duration>(
          std::chrono::duration<double>(static_cast<double>(bytes) / link.bytes_per_second));
    };
    const TimePoint begins = std::max(agenda_.Now(), out.out_free);
    out.out_free = begins + time(out);
    // The first bit arrives while the last is still to be sent.
    const TimePoint first = std::max(begins + options_.delay, in.in_free);
    in.in_free = std::max(out.out_free + options_.delay, first + time(in));
    // A receiver that is slower holds the sender back.
    return {std::max(out.out_free, in.in_free - options_.delay - time(in)), in.in_free};
  }

 private:
  struct Link {
    double bytes_per_second = 0;
    TimePoint out_free{}, in_free{};
  };
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  bool Happens(double share) {
    return share > 0 && static_cast<double>(random_() % 1'000'000) < share * 1e6;
  }

  const Agenda& agenda_;
  std::mt19937_64 random_;
  Options options_;
  std::vector<Link> links_;
  std::set<std::pair<size_t, size_t>> cuts_;
};

}  // namespace cairn::testing
