#include "common/membership/dns_discovery.h"

#include <algorithm>
#include <utility>

#include "common/net/address.h"

namespace cairn::membership {
namespace {

// Whole answers without a member, after which it leaves.
constexpr int kAbsences = 2;

bool AsksForServices(const std::string& name) { return !name.empty() && name[0] == '_'; }

}  // namespace

// The answers of one interval.
struct DnsDiscovery::Round {
  Mutex mu;
  size_t waiting ABSL_GUARDED_BY(mu) = 0;
  std::vector<std::string> addresses ABSL_GUARDED_BY(mu);
  Status error ABSL_GUARDED_BY(mu) = OkStatus();
};

struct DnsDiscovery::State {
  State(Options o, Resolver* r, Timers* t, const Clock* c)
      : options(std::move(o)), resolver(r), timers(t), clock(c) {}

  const Options options;
  Resolver* const resolver;
  Timers* const timers;
  const Clock* const clock;

  // Held while a view is handed out, so that views come in order and none comes after Stop.
  Mutex publish_mu;
  OnView on_view ABSL_GUARDED_BY(publish_mu);
  View published ABSL_GUARDED_BY(publish_mu);

  mutable Mutex mu;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  Timers::Id timer ABSL_GUARDED_BY(mu) = 0;
  std::map<std::string, int> absences ABSL_GUARDED_BY(mu);  // By address.
  DiscoveryHealth health ABSL_GUARDED_BY(mu);
};

DnsDiscovery::DnsDiscovery(Options options, Resolver* resolver, Timers* timers, const Clock* clock)
    : state_(std::make_shared<State>(std::move(options), resolver, timers, clock)) {}

DnsDiscovery::~DnsDiscovery() { Stop(); }

Status DnsDiscovery::Start(const Member& /*self*/, OnView on_view) {
  const Options& options = state_->options;
  if (options.names.empty()) {
    return InvalidArgument("cluster.dns.names: got no name, expected at least one");
  }
  for (const std::string& name : options.names) {
    if (name.empty()) {
      return InvalidArgument("cluster.dns.names: got an empty name, expected a DNS name");
    }
    if (!AsksForServices(name) && options.port == 0) {
      return InvalidArgument(
          "cluster.dns.port: got 0, expected the port on which members listen, because '{}' has "
          "addresses without a port (a name that begins with '_' is asked for SRV records)",
          name);
    }
  }
  {
    MutexLock lock(state_->publish_mu);
    state_->on_view = std::move(on_view);
  }
  Ask(state_);
  return OkStatus();
}

void DnsDiscovery::Stop() {
  {
    MutexLock lock(state_->mu);
    if (state_->stopped) return;
    state_->stopped = true;
    state_->timers->Cancel(state_->timer);
  }
  // A callback that runs now ends first.
  MutexLock lock(state_->publish_mu);
  state_->on_view = nullptr;
}

DiscoveryHealth DnsDiscovery::health() const {
  MutexLock lock(state_->mu);
  return state_->health;
}

void DnsDiscovery::Ask(const std::shared_ptr<State>& state) {
  auto round = std::make_shared<Round>();
  std::vector<std::pair<std::string, RecordType>> questions;
  for (const std::string& name : state->options.names) {
    if (AsksForServices(name)) {
      questions.emplace_back(name, RecordType::kSrv);
    } else {
      questions.emplace_back(name, RecordType::kA);
      questions.emplace_back(name, RecordType::kAaaa);
    }
  }
  {
    MutexLock lock(round->mu);
    round->waiting = questions.size();
  }
  for (const auto& [name, type] : questions) {
    const auto done = [state, round, name = name](Result<std::vector<Record>> records) {
      bool last = false;
      {
        MutexLock lock(round->mu);
        if (records.ok()) {
          for (const Record& record : *records) {
            const net::ListenAddress address{.host = record.host};
            round->addresses.push_back(
                address.WithPort(record.port != 0 ? record.port : state->options.port));
          }
        } else if (round->error.ok()) {
          round->error =
              Errorf(records.status().code(), "name '{}': {}", name, Message(records.status()));
        }
        last = --round->waiting == 0;
      }
      if (last) Finish(state, *round);
    };
    state->resolver->Resolve(name, type, done);
  }
}

void DnsDiscovery::Finish(const std::shared_ptr<State>& state, Round& round) {
  std::vector<std::string> addresses;
  Status error;
  {
    MutexLock lock(round.mu);
    addresses = std::move(round.addresses);
    error = round.error;
  }
  if (error.ok() && addresses.empty()) {
    error = Errorf(StatusCode::kNotFound, "cluster.dns.names: the answers name no member");
  }

  MutexLock publish(state->publish_mu);
  std::vector<Member> members;
  {
    MutexLock lock(state->mu);
    if (state->stopped) return;
    // Only a whole answer says that somebody is gone.
    if (error.ok()) {
      for (auto& [address, absences] : state->absences) ++absences;
      state->health.complete = true;
    }
    for (const std::string& address : addresses) state->absences[address] = 0;
    std::erase_if(state->absences, [](const auto& entry) { return entry.second >= kAbsences; });
    state->health.Note(error, state->clock->Now());
    for (const auto& [address, absences] : state->absences) members.push_back({.address = address});
    state->timer =
        state->timers->At(state->clock->Now() + state->options.interval, [state] { Ask(state); });
  }
  View view = MakeView(std::move(members));
  if (view == state->published) return;
  state->published = view;
  if (state->on_view) state->on_view(view);
}

}  // namespace cairn::membership
