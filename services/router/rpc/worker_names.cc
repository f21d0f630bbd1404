#include "services/router/rpc/worker_names.h"

#include <utility>

#include "common/concurrency/mutex.h"
#include "common/concurrency/timers.h"
#include "common/log/log.h"
#include "common/membership/cares_resolver.h"
#include "common/membership/dns_discovery.h"
#include "common/net/address.h"

namespace cairn::router {
namespace {

constexpr std::string_view kDns = "dns:";
constexpr Duration kInterval = std::chrono::seconds(1);

}  // namespace

Result<WorkerName> ParseWorkerName(const std::string& worker) {
  WorkerName parsed;
  parsed.name = worker.substr(kDns.size());
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!parsed.name.starts_with(scheme)) continue;
    parsed.scheme = scheme;
    parsed.name.erase(0, scheme.size());
  }
  const bool services = parsed.name.starts_with('_');
  if (!services) {
    const auto address = net::ParseListenAddress(parsed.name, "workers");
    if (address.ok() && !address->is_unix) {
      parsed.name = address->host;
      parsed.port = address->port;
    }
  }
  if (parsed.name.empty() || parsed.name.find_first_of("/: ") != std::string::npos ||
      (!services && parsed.port == 0)) {
    return InvalidArgument(
        "workers: got '{}', expected dns:NAME:PORT or dns:_SERVICE._tcp.NAME, before engines with "
        "http:// after dns:",
        worker);
  }
  return parsed;
}

struct WorkerFollower::State {
  explicit State(OnWorkers on) : on_workers(std::move(on)), timers(&SteadyClock::Get()) {}

  void Take(size_t name, const WorkerName& how, const membership::View& view) {
    MutexLock lock(mu);
    named[name].clear();
    for (const auto& member : view) {
      named[name].push_back({.address = how.scheme + member.address, .setting = settings[name]});
    }
    log::Info("router_workers_named",
              {{"name", how.name}, {"workers", log::Num(named[name].size())}});
    std::vector<NamedWorker> all = fixed;
    for (const auto& workers : named) all.insert(all.end(), workers.begin(), workers.end());
    on_workers(all);
  }

  const OnWorkers on_workers;
  // Set before the first look-up.
  std::vector<NamedWorker> fixed;
  std::vector<std::string> settings;  // The names as the setting has them.
  Mutex mu;                           // Held while addresses are handed out: they come in order.
  std::vector<std::vector<NamedWorker>> named ABSL_GUARDED_BY(mu);
  Timers timers;
  std::unique_ptr<membership::CaresResolver> resolver;
  std::vector<std::unique_ptr<membership::DnsDiscovery>> discoveries;  // End first.
};

WorkerFollower::WorkerFollower(std::unique_ptr<State> state) : state_(std::move(state)) {}

WorkerFollower::~WorkerFollower() {
  for (const auto& discovery : state_->discoveries) discovery->Stop();
  state_->timers.Stop();
}

Result<std::unique_ptr<WorkerFollower>> WorkerFollower::Start(
    const std::vector<std::string>& workers, OnWorkers on_workers) {
  auto state = std::make_unique<State>(std::move(on_workers));
  CAIRN_ASSIGN_OR_RETURN(state->resolver, membership::CaresResolver::Create(""));
  std::vector<WorkerName> names;
  for (const std::string& worker : workers) {
    if (!IsWorkerName(worker)) {
      state->fixed.push_back({.address = worker, .setting = worker});
      continue;
    }
    state->settings.push_back(worker);
    CAIRN_ASSIGN_OR_RETURN(WorkerName name, ParseWorkerName(worker));
    names.push_back(std::move(name));
  }
  {
    MutexLock lock(state->mu);
    state->named.resize(names.size());
  }
  state->timers.Start();
  std::unique_ptr<WorkerFollower> follower(new WorkerFollower(std::move(state)));
  State* const all = follower->state_.get();
  for (size_t i = 0; i < names.size(); ++i) {
    const WorkerName& name = names[i];
    all->discoveries.push_back(std::make_unique<membership::DnsDiscovery>(
        membership::DnsDiscovery::Options{
            .names = {name.name}, .port = name.port, .interval = kInterval},
        all->resolver.get(), &all->timers, &SteadyClock::Get()));
    CAIRN_RETURN_IF_ERROR(all->discoveries.back()->Start(
        {}, [all, i, name](const membership::View& view) { all->Take(i, name, view); }));
  }
  return follower;
}

}  // namespace cairn::router
