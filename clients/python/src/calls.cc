#include "clients/python/src/calls.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>

#include "clients/python/src/arguments.h"
#include "clients/python/src/block_sink.h"
#include "clients/python/src/memory.h"
#include "clients/python/src/sealing.h"
#include "clients/python/src/staged_push.h"
#include "clients/python/src/status_error.h"

namespace cairn::python {
namespace {

// Between looks for a signal (Ctrl-C) while an event is awaited.
constexpr Duration kSignalPeriod = std::chrono::milliseconds(100);

// Of parts that a push writes before it commits them.
constexpr uint64_t kBatchBytes = 8 << 20;

// Runs `call` with the client, without the GIL.
template <typename F>
auto WithClient(Connection& connection, F call) -> decltype(call(std::declval<client::CacheClient&>())) {
  const nb::gil_scoped_release released;
  const Result<Connection::Call> entered = connection.Enter();
  if (!entered.ok()) return entered.status();
  return call(entered->client());
}

client::CallOptions CallOptionsOf(nb::handle deadline, const std::string& trace) {
  return {.deadline = Seconds(deadline, "deadline"), .trace = trace};
}

nb::tuple StatusTuple(const Status& status) {
  return nb::make_tuple(static_cast<int>(status.code()), Message(status));
}

template <typename Byte>
BlockBytes<Byte> BytesOf(const std::vector<Memory>& pieces) {
  std::vector<std::span<Byte>> spans;
  spans.reserve(pieces.size());
  for (const Memory& piece : pieces) spans.push_back(piece.bytes());
  return BlockBytes<Byte>(std::move(spans));
}

std::shared_ptr<const client::Lease> Held(const LeaseHandle& lease) {
  return ValueOrThrow(lease.Get());
}

// What one part of a push needs until it is committed.
struct PartSource {
  std::vector<Memory> memory;
  BlockBytes<const std::byte> bytes;
  std::vector<uint64_t> lengths;
};

struct PushedParts {
  std::vector<client::PartToWrite> rooms;
  std::vector<PartSource> sources;
};

// Fields of a Part by their places: it is a named tuple (cairn/types.py). Looking up six names for
// each part would take longer than all else that a push does with the GIL.
enum PartField : Py_ssize_t { kKey, kData, kParent, kFirstPosition, kRect, kComputeSeconds, kPartFields };

PushedParts ReadParts(nb::handle parts, const Layout& layout) {
  PushedParts pushed;
  for (nb::handle part : parts) {
    const size_t at = pushed.sources.size();
    if (!PyTuple_Check(part.ptr()) || PyTuple_GET_SIZE(part.ptr()) != kPartFields ||
        !nb::hasattr(part, "compute_seconds")) {
      throw nb::type_error(
          fmt::format("field 'parts[{}]': got {}, expected a Part", at, TypeName(part)).c_str());
    }
    const auto value = [&](PartField field) { return nb::handle(PyTuple_GET_ITEM(part.ptr(), field)); };
    const auto name = [&](const char* field) { return fmt::format("parts[{}].{}", at, field); };
    PartSource& source = pushed.sources.emplace_back();
    source.memory = Pieces(value(kData), Access::kRead, name("data"));
    source.bytes = BytesOf<const std::byte>(source.memory);
    const format::PartRect rect =
        value(kRect).is_none() ? layout.WholeRect() : ToRect(value(kRect), layout, name("rect"));
    source.lengths = ValueOrThrow(SliceLengths(layout, rect, source.bytes.size(), name("data")));
    client::PartToWrite& room = pushed.rooms.emplace_back();
    room.key = ToDigest(value(kKey), name("key"));
    if (!value(kParent).is_none()) room.parent = ToDigest(value(kParent), name("parent"));
    room.first_position = Integer(value(kFirstPosition), UINT64_MAX, name("first_position"));
    room.rect = rect;
    room.bytes = format::PartBytes(source.lengths);
    room.compute_seconds = Number(value(kComputeSeconds), name("compute_seconds"));
  }
  if (pushed.rooms.empty()) {
    throw StatusError(InvalidArgument("field 'parts': got none, expected at least 1"));
  }
  return pushed;
}

nb::list StatusList(const std::vector<Status>& statuses) {
  nb::list result;
  for (const Status& status : statuses) {
    if (status.ok()) {
      result.append(nb::none());
    } else {
      result.append(StatusTuple(status));
    }
  }
  return result;
}

// Writes the parts into room of the node and commits them.
Result<std::vector<Status>> PushBatch(client::CacheClient& c, const OpenNamespace& ns,
                                      const Digest& fingerprint,
                                      std::span<const client::PartToWrite> rooms,
                                      std::span<const PartSource> sources,
                                      const client::PushOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const auto push, c.BeginPush(fingerprint, rooms, options));
  const auto slots = push->slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].status.ok() || slots[i].room.empty()) continue;
    SealPieces(slots[i].room, sources[i].bytes, ns.codec, rooms[i].rect,
               static_cast<uint16_t>(ns.spec.layout.block_tokens), sources[i].lengths,
               push->path() == client::Path::kLocal);
  }
  return push->Commit();
}

// As many parts at a time as a session may surely take room for, within one deadline.
Result<std::vector<Status>> PushInBatches(client::CacheClient& c, const OpenNamespace& ns,
                                          const Digest& fingerprint,
                                          std::span<const client::PartToWrite> rooms,
                                          std::span<const PartSource> sources,
                                          client::PushOptions options) {
  const TimePoint until = std::chrono::steady_clock::now() + options.deadline;
  std::vector<Status> statuses;
  while (statuses.size() < rooms.size()) {
    const size_t begin = statuses.size();
    size_t end = begin;
    uint64_t bytes = 0;
    do {
      bytes += rooms[end++].bytes;
    } while (end < rooms.size() && bytes + rooms[end].bytes <= kBatchBytes);
    options.deadline =
        std::max<Duration>(until - std::chrono::steady_clock::now(), Duration::zero());
    const auto pushed = PushBatch(c, ns, fingerprint, rooms.subspan(begin, end - begin),
                                  sources.subspan(begin, end - begin), options);
    if (!pushed.ok()) {
      if (begin == 0) return pushed.status();
      // What was committed before is stored.
      statuses.resize(rooms.size(), pushed.status());
      break;
    }
    statuses.insert(statuses.end(), pushed->begin(), pushed->end());
  }
  return statuses;
}

size_t CountOf(nb::handle into) {
  if (!PyList_Check(into.ptr()) && !PyTuple_Check(into.ptr())) {
    throw nb::type_error(
        fmt::format("field 'into': got {}, expected a list or tuple with the memory of each block",
                    TypeName(into))
            .c_str());
  }
  return nb::len(into);
}

// One read of blocks into the caller's memory: what it needs while the GIL is not held.
class Reading {
 public:
  Reading(Connection& connection, const Layout& layout, nb::handle into, uint32_t first_block,
          nb::handle rect, const std::stop_source* cancel)
      : layout_(layout),
        first_(first_block),
        want_(ToRect(rect, layout, "rect")),
        sink_(ValueOrThrow(BlockSink::Create(layout, want_, first_block, Take(into)))),
        on_close_(connection.stop_token(), Stop{&stop_}),
        on_cancel_(cancel == nullptr ? std::stop_token() : cancel->get_token(), Stop{&stop_}) {}

  client::FetchOptions Options(nb::handle progress, nb::handle deadline,
                               const std::string& trace) const {
    return {.progress = Seconds(progress, "progress"),
            .deadline = Seconds(deadline, "deadline"),
            .cancel = stop_.get_token(),
            .trace = trace};
  }
  client::FetchRange Range(size_t blocks) const {
    client::FetchRange range = {.block_begin = first_,
                                .block_end = first_ + static_cast<uint32_t>(blocks)};
    if (layout_.IsNative()) {
      range.layer_begin = want_.layer_begin;
      range.layer_end = want_.layer_end;
    }
    return range;
  }
  BlockSink& sink() { return sink_; }

  // As the header says of Fetch.
  nb::object Answer(const Status& status) const {
    nb::dict failed;
    const auto open =
        status.ok() ? client::MissReason::kIncomplete : client::MissReason::kUnavailable;
    for (const auto& [block, reason] : sink_.Failed(open)) {
      failed[nb::int_(block)] = static_cast<int>(reason);
    }
    return nb::make_tuple(static_cast<int>(status.code()), Message(status), sink_.prefix(),
                          sink_.bytes(), failed);
  }

 private:
  struct Stop {
    std::stop_source* source;
    void operator()() const { source->request_stop(); }
  };

  std::vector<BlockSink::Block> Take(nb::handle into) {
    std::vector<BlockSink::Block> blocks;
    for (nb::handle block : into) {
      memory_.push_back(Pieces(block, Access::kWrite, fmt::format("into[{}]", memory_.size())));
      blocks.push_back(BytesOf<std::byte>(memory_.back()));
    }
    return blocks;
  }

  const Layout& layout_;
  const uint32_t first_;
  const format::PartRect want_;
  std::vector<std::vector<Memory>> memory_;
  BlockSink sink_;
  std::stop_source stop_;
  const std::stop_callback<Stop> on_close_, on_cancel_;
};

}  // namespace

std::shared_ptr<Connection> Connect(const std::string& address, const std::string& client_name,
                                    const std::string& path, nb::handle tls, nb::handle breaker,
                                    nb::handle max_reconnect_backoff, nb::handle spin) {
  client::ConnectOptions options = {.address = address, .client_name = client_name};
  options.path = ValueOrThrow(client::ParsePathChoice(path, "path"));
  if (!tls.is_none()) {
    options.tls = {.ca_file = Text(tls.attr("ca_file"), "tls.ca_file"),
                   .cert_file = Text(tls.attr("cert_file"), "tls.cert_file"),
                   .key_file = Text(tls.attr("key_file"), "tls.key_file"),
                   .server_name = Text(tls.attr("server_name"), "tls.server_name"),
                   .enabled = true};
  }
  if (!breaker.is_none()) {
    options.breaker.failures = static_cast<uint32_t>(
        Integer(breaker.attr("failures"), UINT32_MAX, "breaker.failures"));
    if (options.breaker.failures == 0) {
      throw StatusError(InvalidArgument("field 'breaker.failures': got 0, expected at least 1"));
    }
    options.breaker.first_backoff = Seconds(breaker.attr("first_backoff"), "breaker.first_backoff");
    options.breaker.max_backoff = Seconds(breaker.attr("max_backoff"), "breaker.max_backoff");
    options.breaker.jitter = Number(breaker.attr("jitter"), "breaker.jitter");
  }
  options.max_reconnect_backoff = Seconds(max_reconnect_backoff, "max_reconnect_backoff");
  if (!spin.is_none()) options.spin = Seconds(spin, "spin");
  std::shared_ptr<Connection> connection;
  {
    const nb::gil_scoped_release released;
    connection = ValueOrThrow(Connection::Make(options));
  }
  // Collected without a close, it ends its session without the GIL.
  Connection* const raw = connection.get();
  return {raw, [connection = std::move(connection)](Connection*) mutable {
            const nb::gil_scoped_release released;
            connection.reset();
          }};
}

nb::object Open(Connection& connection, nb::handle spec, nb::handle deadline,
                const std::string& trace) {
  const NamespaceSpec native = ToSpec(spec);
  const client::CallOptions options = CallOptionsOf(deadline, trace);
  const auto opened = ValueOrThrow(
      WithClient(connection, [&](client::CacheClient& c) -> Result<client::OpenedNamespace> {
        connection.Remember(native);
        return c.OpenNamespace(native, options);
      }));
  nb::list differs;
  for (const auto& similar : opened.differs) {
    differs.append(nb::make_tuple(similar.difference.field, similar.difference.stored,
                                  similar.difference.requested, similar.stored_blocks));
  }
  return nb::make_tuple(FromDigest(opened.fingerprint), opened.created, differs);
}

nb::object Match(Connection& connection, nb::handle fingerprint, nb::handle keys, bool lease,
                 nb::handle lease_ttl, nb::handle prefill_tokens_per_second, nb::handle deadline,
                 const std::string& trace) {
  const Digest ns = ToDigest(fingerprint, "fingerprint");
  const std::vector<BlockKey> native = Keys(keys);
  const client::MatchOptions options = {
      .deadline = Seconds(deadline, "deadline"),
      .lease_ttl = Seconds(lease_ttl, "lease_ttl"),
      .lease = lease,
      .prefill_tokens_per_second =
          Number(prefill_tokens_per_second, "prefill_tokens_per_second"),
      .trace = trace};
  auto outcome = ValueOrThrow(WithClient(
      connection, [&](client::CacheClient& c) { return c.Match(ns, native, options); }));
  nb::list tiers;
  for (const client::TierRun& run : outcome.tiers) {
    tiers.append(
        nb::make_tuple(static_cast<int>(run.tier), run.blocks, run.bytes, run.seconds));
  }
  return nb::make_tuple(outcome.matched_blocks,
                        nb::cast(new LeaseHandle(std::move(outcome.lease)),
                                 nb::rv_policy::take_ownership),
                        tiers, static_cast<int>(outcome.miss_reason), outcome.bytes,
                        outcome.estimated_fetch_seconds);
}

nb::object Fetch(Connection& connection, const LeaseHandle& lease, nb::handle into,
                 nb::handle first_block, nb::handle rect, nb::handle progress, nb::handle deadline,
                 const std::stop_source* cancel, const std::string& trace) {
  const std::shared_ptr<const client::Lease> held = Held(lease);
  const auto ns = ValueOrThrow(connection.Find(held->info().fingerprint));
  const size_t count = CountOf(into);
  const uint64_t first = Integer(first_block, UINT32_MAX, "first_block");
  if (count == 0 || first + count > held->info().blocks) {
    throw StatusError(
        Errorf(StatusCode::kOutOfRange,
               "field 'into': got memory for {} blocks from block {} on, expected at least 1 and no "
               "more than the {} of the lease",
               count, first, held->info().blocks));
  }
  Reading reading(connection, ns->spec.layout, into, static_cast<uint32_t>(first), rect, cancel);
  const client::FetchOptions options = reading.Options(progress, deadline, trace);
  const Status status = WithClient(connection, [&](client::CacheClient& c) -> Status {
    return c.Fetch(*held, reading.Range(count), reading.sink(), options);
  });
  return reading.Answer(status);
}

nb::object Get(Connection& connection, nb::handle fingerprint, nb::handle keys, nb::handle into,
               nb::handle rect, nb::handle lookup_deadline, nb::handle progress,
               nb::handle deadline, const std::stop_source* cancel, const std::string& trace) {
  const Digest digest = ToDigest(fingerprint, "fingerprint");
  const auto ns = ValueOrThrow(connection.Find(digest));
  const std::vector<BlockKey> native = Keys(keys);
  const size_t count = CountOf(into);
  if (count == 0 || count != native.size()) {
    throw StatusError(InvalidArgument(
        "field 'into': got memory for {} blocks, expected one for each of the {} keys", count,
        native.size()));
  }
  Reading reading(connection, ns->spec.layout, into, 0, rect, cancel);
  const client::FetchOptions options = reading.Options(progress, deadline, trace);
  const client::MatchOptions match = {.deadline = Seconds(lookup_deadline, "lookup_deadline"),
                                      .trace = trace};
  const Status status = WithClient(connection, [&](client::CacheClient& c) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const client::MatchOutcome found, c.Match(digest, native, match));
    for (auto block = found.matched_blocks; block < count; ++block) {
      reading.sink().OnBlockFailed(block, found.miss_reason);
    }
    if (found.matched_blocks == 0) return OkStatus();
    return c.Fetch(found.lease, reading.Range(found.matched_blocks), reading.sink(), options);
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
        return PushInBatches(c, *ns, ns_fingerprint, pushed.rooms, pushed.sources, options);
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
    std::vector<PartBytesToCopy> sources;
    for (const PartSource& source : pushed.sources) {
      sources.push_back({&source.bytes, source.lengths});
    }
    CAIRN_ASSIGN_OR_RETURN(auto staged, StagedPush::Make(c, *ns, ns_fingerprint, pushed.rooms,
                                                         std::move(sources), options));
    return connection.Keep(std::move(staged));
  }));
}

nb::object CommitStaged(Connection& connection, uint64_t id) {
  return StatusList(ValueOrThrow(
      WithClient(connection, [&](client::CacheClient&) -> Result<std::vector<Status>> {
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
  const auto outcome = ValueOrThrow(WithClient(connection, [&](client::CacheClient& c) {
    return c.Prefetch(ns, native, when, options);
  }));
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
  return cairn::Seconds(ValueOrThrow(WithClient(connection, [&](client::CacheClient& c) {
    return c.RenewLease(*held, wanted, options);
  })));
}

void Flush(Connection& connection, nb::handle deadline, const std::string& trace) {
  const client::CallOptions options = CallOptionsOf(deadline, trace);
  ThrowIfError(
      WithClient(connection, [&](client::CacheClient& c) { return c.Flush(options); }));
}

nb::object Stat(Connection& connection, nb::handle deadline, const std::string& trace) {
  const client::CallOptions options = CallOptionsOf(deadline, trace);
  const client::NodeStats stats = ValueOrThrow(
      WithClient(connection, [&](client::CacheClient& c) { return c.Stat(options); }));
  nb::dict out;
#define CAIRN_FIELD(name) out[#name] = stats.name
  CAIRN_FIELD(node_id);
  CAIRN_FIELD(node_epoch);
  CAIRN_FIELD(version);
  CAIRN_FIELD(uptime_seconds);
  CAIRN_FIELD(namespaces);
  CAIRN_FIELD(blocks);
  CAIRN_FIELD(incomplete_blocks);
  CAIRN_FIELD(leases);
  CAIRN_FIELD(reservations);
  CAIRN_FIELD(reserved_bytes);
  CAIRN_FIELD(sessions);
  CAIRN_FIELD(unflushed_bytes);
  CAIRN_FIELD(index_bytes);
  CAIRN_FIELD(matched_tokens);
  CAIRN_FIELD(missed_tokens);
  CAIRN_FIELD(fetched_bytes);
  CAIRN_FIELD(pushed_bytes);
  CAIRN_FIELD(fetched_host_bytes);
  CAIRN_FIELD(fetched_disk_bytes);
  CAIRN_FIELD(promoted_blocks);
  CAIRN_FIELD(corrupt_blocks);
  CAIRN_FIELD(prefetched_blocks);
  CAIRN_FIELD(prefetched_used_blocks);
  CAIRN_FIELD(draining);
  CAIRN_FIELD(prefill_seconds_saved);
  CAIRN_FIELD(disk_io_mode);
#undef CAIRN_FIELD
  nb::list misses;
  for (const uint64_t blocks : stats.misses) misses.append(blocks);
  out["misses"] = misses;
  nb::list tiers;
  for (const client::TierStat& tier : stats.tiers) {
    tiers.append(nb::make_tuple(static_cast<int>(tier.tier), tier.capacity_bytes, tier.used_bytes,
                                tier.blocks, tier.read_bytes, tier.written_bytes,
                                tier.evicted_blocks));
  }
  out["tiers"] = tiers;
  return out;
}

nb::object Stats(Connection& connection) {
  const client::ClientStats stats =
      ValueOrThrow(WithClient(connection, [](client::CacheClient& c) -> Result<client::ClientStats> {
        return c.GetStats();
      }));
  nb::dict out;
#define CAIRN_FIELD(name) out[#name] = stats.name
  CAIRN_FIELD(matches);
  CAIRN_FIELD(matched_blocks);
  CAIRN_FIELD(fetches);
  CAIRN_FIELD(fetched_slices);
  CAIRN_FIELD(pushed_parts);
  CAIRN_FIELD(pushed_bytes);
  CAIRN_FIELD(local_sessions);
  CAIRN_FIELD(local_fallbacks);
  CAIRN_FIELD(corrupt_slices);
  CAIRN_FIELD(sessions);
  CAIRN_FIELD(breaker_opened);
  CAIRN_FIELD(breaker_rejected);
  CAIRN_FIELD(dropped_releases);
  CAIRN_FIELD(connected);
  CAIRN_FIELD(path_reason);
#undef CAIRN_FIELD
  uint64_t fetched = 0;
  for (const uint64_t bytes : stats.fetched_bytes) fetched += bytes;
  out["fetched_bytes"] = fetched;
  out["breaker"] = std::string(client::Name(stats.breaker));
  out["path"] = std::string(client::Name(stats.path));
  return out;
}

uint64_t Watch(Connection& connection, nb::handle fingerprint, bool snapshot) {
  const client::WatchOptions options = {
      .fingerprint = ToOptionalDigest(fingerprint, "fingerprint"), .snapshot = snapshot};
  const nb::gil_scoped_release released;
  return ValueOrThrow(connection.Watch(options));
}

nb::object NextEvent(Connection& connection, uint64_t stream, nb::handle wait) {
  // None: for ever.
  const TimePoint until =
      wait.is_none() ? TimePoint::max() : std::chrono::steady_clock::now() + Seconds(wait, "wait");
  std::optional<client::CacheEvent> event;
  while (!event) {
    const TimePoint now = std::chrono::steady_clock::now();
    Result<std::optional<client::CacheEvent>> next = std::optional<client::CacheEvent>();
    {
      const nb::gil_scoped_release released;
      next = connection.NextEvent(
          stream, std::clamp<Duration>(until - now, Duration::zero(), kSignalPeriod));
    }
    event = ValueOrThrow(std::move(next));
    if (!event && std::chrono::steady_clock::now() >= until) return nb::none();
    if (!event && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return nb::make_tuple(static_cast<int>(event->kind), event->node_epoch, event->sequence,
                        FromDigest(event->fingerprint), FromDigest(event->key),
                        event->parent ? nb::object(FromDigest(*event->parent)) : nb::none(),
                        static_cast<int>(event->tier));
}

}  // namespace cairn::python
