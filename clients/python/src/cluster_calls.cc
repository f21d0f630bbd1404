#include "clients/python/src/cluster_calls.h"

#include <algorithm>
#include <utility>

#include "clients/python/src/arguments.h"
#include "clients/python/src/calls.h"
#include "clients/python/src/released_gil.h"
#include "clients/python/src/status_error.h"

namespace cairn::python {

std::shared_ptr<ClusterWatch> WatchCluster(const std::string& address,
                                           const std::string& client_name, nb::handle tls,
                                           const std::string& tenant, nb::handle fingerprint,
                                           nb::handle refresh, nb::handle lost_after) {
  client::ConnectOptions connection = {
      .address = address, .client_name = client_name, .tenant = tenant};
  connection.tls = ToTls(tls);
  const client::ClusterWatchOptions options = {
      .fingerprint = ToOptionalDigest(fingerprint, "fingerprint"),
      .refresh = Seconds(refresh, "refresh"),
      .lost_after = Seconds(lost_after, "lost_after")};
  std::shared_ptr<ClusterWatch> watch;
  {
    const ReleasedGil released;
    watch = ValueOrThrow(ClusterWatch::Make(connection, options));
  }
  // Collected without a close, it ends its threads without the GIL.
  ClusterWatch* const raw = watch.get();
  return {raw, [watch = std::move(watch)](ClusterWatch*) mutable {
            const ReleasedGil released;
            watch.reset();
          }};
}

nb::object NextMemberEvent(ClusterWatch& watch, nb::handle wait) {
  // None: forever.
  const TimePoint until =
      wait.is_none() ? TimePoint::max() : std::chrono::steady_clock::now() + Seconds(wait, "wait");
  std::optional<client::MemberEvent> event;
  while (!event) {
    const TimePoint now = std::chrono::steady_clock::now();
    Result<std::optional<client::MemberEvent>> next = std::optional<client::MemberEvent>();
    {
      const ReleasedGil released;
      next = watch.Next(std::clamp<Duration>(until - now, Duration::zero(), kSignalPeriod));
    }
    event = ValueOrThrow(std::move(next));
    if (!event && std::chrono::steady_clock::now() >= until) return nb::none();
    if (!event && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  const bool of_block = event->kind == client::MemberEvent::Kind::kEvent;
  return nb::make_tuple(static_cast<int>(event->kind),
                        nb::str(event->node_id.data(), event->node_id.size()),
                        nb::str(event->address.data(), event->address.size()),
                        of_block ? nb::object(FromEvent(event->event)) : nb::none());
}

nb::list MemberIds(ClusterWatch& watch) {
  nb::list ids;
  for (const std::string& id : watch.members()) ids.append(nb::str(id.data(), id.size()));
  return ids;
}

}  // namespace cairn::python
