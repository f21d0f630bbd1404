#include "clients/python/src/calls.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>

#include "clients/python/src/arguments.h"
#include "clients/python/src/device_blocks.h"
#include "clients/python/src/part_source.h"
#include "clients/python/src/pushing.h"
#include "clients/python/src/reading.h"
#include "clients/python/src/released_gil.h"
#include "clients/python/src/status_error.h"

namespace cairn::python {
namespace {

// Runs `call` with the client, without the GIL.
template <typename F>
auto WithClient(Connection& connection, F call)
    -> decltype(call(std::declval<client::CacheClient&>())) {
  const ReleasedGil released;
  const Result<Connection::Call> entered = connection.Enter();
  if (!entered.ok()) return entered.status();
  return call(entered->client());
}

client::CallOptions CallOptionsOf(nb::handle deadline, const std::string& trace) {
  return {.deadline = Seconds(deadline, "deadline"), .trace = trace};
}

nb::object StatusOrNone(const Status& status) {
  if (status.ok()) return nb::none();
  return nb::make_tuple(static_cast<int>(status.code()), Message(status));
}

nb::str KeyOf(const Statistic& row) { return nb::str(row.name.data(), row.name.size()); }

std::shared_ptr<const client::Lease> Held(const LeaseHandle& lease) {
  return ValueOrThrow(lease.Get());
}

// As the header says of Match.
nb::object MatchTuple(const client::MatchOutcome& outcome, client::Lease lease,
                      nb::object joint = nb::none()) {
  nb::list tiers;
  for (const client::TierRun& run : outcome.tiers) {
    nb::object tier = nb::none();
    if (run.tier) tier = nb::int_(static_cast<int>(*run.tier));
    tiers.append(nb::make_tuple(tier, run.blocks, run.bytes, run.seconds));
  }
  return nb::make_tuple(outcome.matched_blocks,
                        nb::cast(new LeaseHandle(std::move(lease)), nb::rv_policy::take_ownership),
                        tiers, static_cast<int>(outcome.miss_reason), outcome.bytes,
                        outcome.estimated_fetch_seconds, std::move(joint));
}

NextUse ToNextUse(const std::string& next) {
  const auto parsed = ParseNextUse(next);
  if (parsed) return *parsed;
  const std::string text = "next: got '" + next + "', expected soon, later, never or unknown";
  throw nb::value_error(text.c_str());
}

// A match over pools names all of these.
JointQuestion ToQuestion(const nb::kwargs& named) {
  if (!named.contains("pools")) return {};
  JointQuestion question = {
      .step_tokens = static_cast<uint32_t>(Integer(named["step"], UINT32_MAX, "step")),
      .most_tokens = Integer(named["most"], UINT64_MAX, "most"),
      .all = Flag(named["all_lengths"], "all_lengths")};
  for (nb::handle need : named["pools"]) {
    if (!nb::hasattr(need, "tail_tokens")) {
      throw nb::type_error(fmt::format("field 'pools[{}]': got {}, expected a PoolNeed",
                                       question.pools.size(), TypeName(need))
                               .c_str());
    }
    const std::string prefix = fmt::format("pools[{}].", question.pools.size());
    const auto number = [&](const char* name) {
      return static_cast<uint32_t>(Integer(need.attr(name), UINT32_MAX, prefix + name));
    };
    question.pools.push_back({.pool = number("pool"),
                              .tail_tokens = number("tail_tokens"),
                              .proof_blocks = number("proof_blocks")});
  }
  if (question.pools.empty()) {
    throw StatusError(InvalidArgument("field 'pools': got none, expected at least one"));
  }
  return question;
}

// None, or (restorable_tokens, [(pool, first_block, blocks)], limiting pool, bits).
nb::object JointTuple(const JointAnswer& joint, bool asked) {
  if (!asked) return nb::none();
  nb::list runs;
  for (const PoolRun& run : joint.pool_runs) {
    runs.append(nb::make_tuple(run.pool, run.first_block, run.blocks));
  }
  nb::object limiting = nb::none();
  if (joint.limiting_pool) limiting = nb::int_(*joint.limiting_pool);
  return nb::make_tuple(joint.restorable_tokens, runs, limiting,
                        nb::bytes(joint.restorable.data(), joint.restorable.size()));
}

nb::list StatusList(const std::vector<Status>& statuses) {
  nb::list result;
  for (const Status& status : statuses) result.append(StatusOrNone(status));
  return result;
}

}  // namespace

client::TlsOptions ToTls(nb::handle tls) {
  if (tls.is_none()) return {};
  return {.ca_file = Text(tls.attr("ca_file"), "tls.ca_file"),
          .cert_file = Text(tls.attr("cert_file"), "tls.cert_file"),
          .key_file = Text(tls.attr("key_file"), "tls.key_file"),
          .server_name = Text(tls.attr("server_name"), "tls.server_name"),
          .enabled = true};
}

nb::tuple FromEvent(const client::CacheEvent& event) {
  return nb::make_tuple(static_cast<int>(event.kind), event.node_epoch, event.sequence,
                        FromDigest(event.fingerprint), FromDigest(event.key),
                        event.parent ? nb::object(FromDigest(*event.parent)) : nb::none(),
                        static_cast<int>(event.tier), event.pool);
}

client::ConnectOptions ToConnectOptions(const nb::kwargs& named) {
  client::ConnectOptions options = {.address = Text(named["address"], "address"),
                                    .client_name = Text(named["client_name"], "client_name"),
                                    .host = Text(named["host"], "host"),
                                    .zone = Text(named["zone"], "zone"),
                                    .home_key = Text(named["home_key"], "home_key"),
                                    .tenant = Text(named["tenant"], "tenant")};
  options.path = ValueOrThrow(client::ParsePathChoice(Text(named["path"], "path"), "path"));
  options.tls = ToTls(named["tls"]);
  if (const nb::object breaker = named["breaker"]; !breaker.is_none()) {
    options.breaker.failures =
        static_cast<uint32_t>(Integer(breaker.attr("failures"), UINT32_MAX, "breaker.failures"));
    if (options.breaker.failures == 0) {
      throw StatusError(InvalidArgument("field 'breaker.failures': got 0, expected at least 1"));
    }
    options.breaker.first_backoff = Seconds(breaker.attr("first_backoff"), "breaker.first_backoff");
    options.breaker.max_backoff = Seconds(breaker.attr("max_backoff"), "breaker.max_backoff");
    options.breaker.jitter = Number(breaker.attr("jitter"), "breaker.jitter");
  }
  options.max_reconnect_backoff = Seconds(named["max_reconnect_backoff"], "max_reconnect_backoff");
  if (const nb::object spin = named["spin"]; !spin.is_none()) options.spin = Seconds(spin, "spin");
  return options;
}

std::shared_ptr<Connection> Connect(const std::optional<std::pair<std::string, uint32_t>>& device,
                                    client::ConnectOptions options) {
  std::shared_ptr<Connection> connection;
  {
    const ReleasedGil released;
    if (device) options.devices = OpenImporter(device->first, device->second);
    connection = ValueOrThrow(Connection::Make(options));
  }
  // Collected without a close, it ends its session without the GIL.
  Connection* const raw = connection.get();
  return {raw, [connection = std::move(connection)](Connection*) mutable {
            const ReleasedGil released;
            connection.reset();
          }};
}

nb::object Open(Connection& connection, nb::handle spec, nb::handle block_life, nb::handle deadline,
                const std::string& trace) {
  const NamespaceSpec native = ToSpec(spec);
  const client::NamespaceOptions how = {.block_life = Seconds(block_life, "block_life")};
  const client::CallOptions options = CallOptionsOf(deadline, trace);
  const auto opened = ValueOrThrow(
      WithClient(connection, [&](client::CacheClient& c) -> Result<client::OpenedNamespace> {
        CAIRN_RETURN_IF_ERROR(connection.Remember(native));
        return c.OpenNamespace(native, options, how);
      }));
  nb::list differs;
  for (const auto& similar : opened.differs) {
    differs.append(nb::make_tuple(similar.difference.field, similar.difference.stored,
                                  similar.difference.requested, similar.stored_blocks));
  }
  return nb::make_tuple(FromDigest(opened.fingerprint), opened.created, differs);
}

client::MatchOptions ToMatchOptions(const nb::kwargs& named) {
  return {.deadline = Seconds(named["deadline"], "deadline"),
          .lease_ttl = Seconds(named["lease_ttl"], "lease_ttl"),
          .lease = Flag(named["lease"], "lease"),
          .prefill_tokens_per_second =
              Number(named["prefill_tokens_per_second"], "prefill_tokens_per_second"),
          .trace = Text(named["trace"], "trace"),
          .holders = Texts(named["holders"], "holders"),
          .next = ToNextUse(Text(named["next"], "next")),
          .wait = Seconds(named["wait"], "wait"),
          .wait_blocks =
              static_cast<uint32_t>(Integer(named["wait_blocks"], UINT32_MAX, "wait_blocks")),
          .announce = Flag(named["announce"], "announce"),
          .joint = ToQuestion(named)};
}

nb::object Match(Connection& connection, nb::handle fingerprint, nb::handle keys,
                 const client::MatchOptions& options) {
  const Digest ns = ToDigest(fingerprint, "fingerprint");
  const std::vector<BlockKey> native = Keys(keys);
  auto outcome = ValueOrThrow(
      WithClient(connection, [&](client::CacheClient& c) { return c.Match(ns, native, options); }));
  return MatchTuple(outcome, std::move(outcome.lease),
                    JointTuple(outcome.joint, options.joint.asked()));
}

std::shared_ptr<PendingMatch> BeginMatch(Connection& connection, nb::handle fingerprint,
                                         nb::handle keys, nb::handle prefetch_in,
                                         nb::handle deadline, const std::string& trace) {
  PendingMatch::Question question = {
      .fingerprint = ToDigest(fingerprint, "fingerprint"),
      .keys = Keys(keys),
      .match = {.deadline = Seconds(deadline, "deadline"), .lease = false, .trace = trace},
      .needed_in = {}};
  if (!prefetch_in.is_none()) question.needed_in = Seconds(prefetch_in, "prefetch_in");
  return ValueOrThrow(connection.Ask(std::move(question)));
}

nb::object MatchAnswer(const PendingMatch& pending) {
  if (!pending.Done()) {
    throw StatusError(Errorf(StatusCode::kFailedPrecondition, "match: it has no result yet"));
  }
  const PendingMatch::Answer& answer = pending.answer();
  ThrowIfError(answer.match.status());
  return nb::make_tuple(MatchTuple(*answer.match, {}), StatusOrNone(answer.hint));
}

namespace {

// Runs a fetch into memory of the host, and of a GPU unless `device` is null. Returns its reading,
// which has the answer.
template <typename Answer>
nb::object FetchInto(Connection& connection, const LeaseHandle& lease, nb::handle into,
                     DeviceTarget* device, nb::handle first_block, nb::handle rect,
                     nb::handle progress, nb::handle deadline, const std::stop_source* cancel,
                     const std::string& trace, Answer answer) {
  const std::shared_ptr<const client::Lease> held = Held(lease);
  const auto ns = ValueOrThrow(connection.Find(held->info().fingerprint));
  const size_t count = CountOf(into);
  const uint64_t first = Integer(first_block, UINT32_MAX, "first_block");
  if (count == 0 || first + count > held->info().blocks) {
    throw StatusError(Errorf(
        StatusCode::kOutOfRange,
        "field 'into': got memory for {} blocks from block {} on, expected at least 1 and no "
        "more than the {} of the lease",
        count, first, held->info().blocks));
  }
  Reading reading(connection, ns->spec.layout, into, static_cast<uint32_t>(first), rect, cancel);
  reading.sink().SetDevice(device);
  const client::FetchOptions options = reading.Options(progress, deadline, trace);
  const Status status = WithClient(connection, [&](client::CacheClient& c) -> Status {
    return c.Fetch(*held, reading.Range(count), reading.sink(), options);
  });
  return answer(reading, status);
}

}  // namespace

nb::object Fetch(Connection& connection, const LeaseHandle& lease, nb::handle into,
                 nb::handle first_block, nb::handle rect, nb::handle progress, nb::handle deadline,
                 const std::stop_source* cancel, const std::string& trace) {
  return FetchInto(
      connection, lease, into, nullptr, first_block, rect, progress, deadline, cancel, trace,
      [](const Reading& reading, const Status& status) { return reading.Answer(status); });
}

nb::object FetchOnDevice(Connection& connection, const LeaseHandle& lease, nb::handle into,
                         DeviceTarget& device, nb::handle first_block, nb::handle rect,
                         nb::handle deadline) {
  return FetchInto(connection, lease, into, &device, first_block, rect, nb::float_(1.0), deadline,
                   nullptr, "", [](Reading& reading, const Status& status) -> nb::object {
                     nb::list there;
                     for (const uint32_t block : reading.sink().on_device()) there.append(block);
                     return nb::make_tuple(reading.Answer(status), there);
                   });
}

GetOptions ToGetOptions(const nb::kwargs& named) {
  const std::string trace = Text(named["trace"], "trace");
  return {.match = {.deadline = Seconds(named["lookup_deadline"], "lookup_deadline"),
                    .trace = trace,
                    .holders = Texts(named["holders"], "holders")},
          .rect = named["rect"],
          .progress = named["progress"],
          .deadline = named["deadline"],
          .trace = trace};
}

nb::object Get(Connection& connection, nb::handle fingerprint, nb::handle keys, nb::handle into,
               const std::stop_source* cancel, const GetOptions& options) {
  const Digest digest = ToDigest(fingerprint, "fingerprint");
  const auto ns = ValueOrThrow(connection.Find(digest));
  const std::vector<BlockKey> native = Keys(keys);
  const size_t count = CountOf(into);
  if (count == 0 || count != native.size()) {
    throw StatusError(InvalidArgument(
        "field 'into': got memory for {} blocks, expected one for each of the {} keys", count,
        native.size()));
  }
  Reading reading(connection, ns->spec.layout, into, 0, options.rect, cancel);
  const client::FetchOptions fetch =
      reading.Options(options.progress, options.deadline, options.trace);
  const Status status = WithClient(connection, [&](client::CacheClient& c) -> Status {
    const client::FetchRange range = reading.Range(count);
    CAIRN_ASSIGN_OR_RETURN(const client::MatchOutcome found,
                           c.Get(digest, native, {range.layer_begin, range.layer_end},
                                 reading.sink(), options.match, fetch));
    for (auto block = found.matched_blocks; block < count; ++block) {
      reading.sink().OnBlockFailed(block, found.miss_reason);
    }
    return OkStatus();
  });
  return reading.Answer(status);
}

nb::object Push(Connection& connection, nb::handle fingerprint, nb::handle parts,
                nb::handle reservation_ttl, nb::handle deadline, const std::string& trace) {
  const Digest ns_fingerprint = ToDigest(fingerprint, "fingerprint");
  const auto ns = ValueOrThrow(connection.Find(ns_fingerprint));
  const client::PushOptions options = {
      .deadline = Seconds(deadline, "deadline"),
      .reservation_ttl = Seconds(reservation_ttl, "reservation_ttl"),
      .trace = trace};
  const PushedParts pushed = ReadParts(parts, ns->spec.layout);
  return StatusList(ValueOrThrow(
      WithClient(connection, [&](client::CacheClient& c) -> Result<std::vector<Status>> {
        return PushInBatches(c, *ns, ns_fingerprint, pushed.rooms, pushed.contents, options);
      })));
}

uint64_t Stage(Connection& connection, nb::handle fingerprint, nb::handle parts,
               nb::handle reservation_ttl, nb::handle deadline, nb::handle commit_deadline,
               const std::string& trace) {
  const Digest ns_fingerprint = ToDigest(fingerprint, "fingerprint");
  const auto ns = ValueOrThrow(connection.Find(ns_fingerprint));
  const client::PushOptions options = {
      .deadline = Seconds(commit_deadline, "commit_deadline"),
      .room_deadline = Seconds(deadline, "deadline"),
      .reservation_ttl = Seconds(reservation_ttl, "reservation_ttl"),
      .trace = trace};
  const PushedParts pushed = ReadParts(parts, ns->spec.layout);
  return ValueOrThrow(WithClient(connection, [&](client::CacheClient& c) -> Result<uint64_t> {
    CAIRN_ASSIGN_OR_RETURN(
        auto staged, StageParts(c, *ns, ns_fingerprint, pushed.rooms, pushed.contents, options));
    return connection.Keep(std::move(staged));
  }));
}

nb::object CommitStaged(Connection& connection, uint64_t id) {
  return StatusList(
      ValueOrThrow(WithClient(connection, [&](client::CacheClient&) -> Result<std::vector<Status>> {
        CAIRN_ASSIGN_OR_RETURN(const auto staged, connection.TakeStaged(id));
        return staged->Commit();
      })));
}

nb::object Prefetch(Connection& connection, nb::handle fingerprint, nb::handle keys,
                    nb::handle needed_in, nb::handle deadline, const std::string& trace) {
  const Digest ns = ToDigest(fingerprint, "fingerprint");
  const std::vector<BlockKey> native = Keys(keys);
  const Duration when = Seconds(needed_in, "needed_in");
  const client::CallOptions options = CallOptionsOf(deadline, trace);
  const auto outcome = ValueOrThrow(WithClient(
      connection, [&](client::CacheClient& c) { return c.Prefetch(ns, native, when, options); }));
  return nb::make_tuple(outcome.present_blocks, outcome.queued_blocks, outcome.absent_blocks,
                        outcome.refused_blocks, outcome.estimated_seconds);
}

nb::object Exists(Connection& connection, nb::handle fingerprint, nb::handle keys,
                  nb::handle deadline, const std::string& trace) {
  const Digest ns = ToDigest(fingerprint, "fingerprint");
  const std::vector<BlockKey> native = Keys(keys);
  const client::CallOptions options = CallOptionsOf(deadline, trace);
  const auto tiers = ValueOrThrow(WithClient(
      connection, [&](client::CacheClient& c) { return c.Exists(ns, native, options); }));
  nb::list result;
  for (const auto& tier : tiers) {
    result.append(tier ? nb::object(nb::int_(static_cast<int>(*tier))) : nb::none());
  }
  return result;
}

double RenewLease(Connection& connection, const LeaseHandle& lease, nb::handle ttl,
                  nb::handle deadline, const std::string& trace) {
  const auto held = Held(lease);
  const Duration wanted = Seconds(ttl, "ttl");
  const client::CallOptions options = CallOptionsOf(deadline, trace);
  return cairn::Seconds(ValueOrThrow(WithClient(
      connection, [&](client::CacheClient& c) { return c.RenewLease(*held, wanted, options); })));
}

void Flush(Connection& connection, nb::handle deadline, const std::string& trace) {
  const client::CallOptions options = CallOptionsOf(deadline, trace);
  ThrowIfError(WithClient(connection, [&](client::CacheClient& c) { return c.Flush(options); }));
}

nb::object Stat(Connection& connection, nb::handle deadline, const std::string& trace) {
  const client::CallOptions options = CallOptionsOf(deadline, trace);
  const client::NodeStats stats =
      ValueOrThrow(WithClient(connection, [&](client::CacheClient& c) { return c.Stat(options); }));
  nb::dict out;
  ForEachStatistic(stats, [&](const Statistic& row, auto value) { out[KeyOf(row)] = value; });
  out["node_id"] = stats.node_id;
  out["node_epoch"] = stats.node_epoch;
  out["version"] = stats.version;
  out["uptime_seconds"] = stats.uptime_seconds;
  out["disk_io_mode"] = stats.disk_io_mode;
  out["draining"] = stats.draining;
  nb::list misses;
  for (const uint64_t blocks : stats.misses) misses.append(blocks);
  out["misses"] = misses;
  nb::list tiers;
  for (const client::TierStat& tier : stats.tiers) {
    nb::dict fields;
    fields["tier"] = static_cast<int>(tier.tier);
    ForEachStatistic(tier, [&](const Statistic& row, auto value) { fields[KeyOf(row)] = value; });
    tiers.append(fields);
  }
  out["tiers"] = tiers;
  return out;
}

nb::object Stats(Connection& connection) {
  const client::ClientStats stats = ValueOrThrow(WithClient(
      connection,
      [](client::CacheClient& c) -> Result<client::ClientStats> { return c.GetStats(); }));
  nb::dict out;
  client::ForEachTotal(stats, [&](std::string_view name, uint64_t value) {
    out[nb::str(name.data(), name.size())] = value;
  });
  out["connected"] = stats.connected;
  out["home"] = stats.home;
  out["home_node_id"] = stats.home_node_id;
  out["path_reason"] = stats.path_reason;
  uint64_t fetched = 0;
  for (const uint64_t bytes : stats.fetched_bytes) fetched += bytes;
  out["fetched_bytes"] = fetched;
  out["breaker"] = std::string(client::Name(stats.breaker));
  out["path"] = std::string(client::Name(stats.path));
  return out;
}

uint64_t Watch(Connection& connection, nb::handle fingerprint, bool snapshot) {
  const client::WatchOptions options = {.fingerprint = ToOptionalDigest(fingerprint, "fingerprint"),
                                        .snapshot = snapshot};
  const ReleasedGil released;
  return ValueOrThrow(connection.Watch(options));
}

nb::object NextEvent(Connection& connection, uint64_t stream, nb::handle wait) {
  // None: forever.
  const TimePoint until =
      wait.is_none() ? TimePoint::max() : std::chrono::steady_clock::now() + Seconds(wait, "wait");
  std::optional<client::CacheEvent> event;
  while (!event) {
    const TimePoint now = std::chrono::steady_clock::now();
    Result<std::optional<client::CacheEvent>> next = std::optional<client::CacheEvent>();
    {
      const ReleasedGil released;
      next = connection.NextEvent(
          stream, std::clamp<Duration>(until - now, Duration::zero(), kSignalPeriod));
    }
    event = ValueOrThrow(std::move(next));
    if (!event && std::chrono::steady_clock::now() >= until) return nb::none();
    if (!event && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return FromEvent(*event);
}

}  // namespace cairn::python
