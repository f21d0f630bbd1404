#pragma once
// The client's calls with Python's values. They read their arguments with the GIL and wait without
// it. They throw failures as StatusError. The package's client.py gives the results their types.

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "clients/python/src/block_sink.h"
#include "clients/python/src/connection.h"
#include "clients/python/src/lease.h"

namespace cairn::python {

namespace nb = nanobind;

// The options of a call by their names, all of them, as client.py gives them. _native.pyi has their
// types. KeyError: one is missing.
client::ConnectOptions ToConnectOptions(const nb::kwargs& named);
client::MatchOptions ToMatchOptions(const nb::kwargs& named);
struct GetOptions {
  client::MatchOptions match;
  nb::object rect;  // None: all of each block.
  nb::object progress;
  nb::object deadline;
  std::string trace;
};
GetOptions ToGetOptions(const nb::kwargs& named);

// `device`: (library, number) of a GPU in whose memory the client may read blocks, where a node on
// this machine keeps them. A GPU that cannot do that is none.
std::shared_ptr<Connection> Connect(const std::optional<std::pair<std::string, uint32_t>>& device,
                                    client::ConnectOptions options);

// (fingerprint, created, [(field, stored, requested, stored_blocks)]).
nb::object Open(Connection& connection, nb::handle spec, nb::handle block_life, nb::handle deadline,
                const std::string& trace);
// (matched_blocks, LeaseHandle, [(tier, blocks, bytes, seconds)], miss_reason, bytes, seconds,
// joint). joint: None, or (restorable_tokens, [(pool, first_block, blocks)], limiting pool or None,
// bits of the restorable lengths).
nb::object Match(Connection& connection, nb::handle fingerprint, nb::handle keys,
                 const client::MatchOptions& options);
// The same without a lease, and nobody waits for it. `prefetch_in`: None, or the seconds after
// which the node should have the matched blocks in memory.
std::shared_ptr<PendingMatch> BeginMatch(Connection& connection, nb::handle fingerprint,
                                         nb::handle keys, nb::handle prefetch_in,
                                         nb::handle deadline, const std::string& trace);
// (Match's answer, None or the hint's (code, message)). FAILED_PRECONDITION before it is done.
nb::object MatchAnswer(const PendingMatch& pending);
// (code, message, prefix, bytes, {block: miss_reason}): a failed fetch still says what it brought.
nb::object Fetch(Connection& connection, const LeaseHandle& lease, nb::handle into,
                 nb::handle first_block, nb::handle rect, nb::handle progress, nb::handle deadline,
                 const std::stop_source* cancel, const std::string& trace);
// As Fetch, but blocks of an opaque layout that lie in memory of the GPU go to `device`, and not to
// `into`: (Fetch's answer, [block that went there]).
nb::object FetchOnDevice(Connection& connection, const LeaseHandle& lease, nb::handle into,
                         DeviceTarget& device, nb::handle first_block, nb::handle rect,
                         nb::handle deadline);
// Match, Fetch of what matched, and the lease's end. As Fetch; a block that did not match has the
// match's reason.
nb::object Get(Connection& connection, nb::handle fingerprint, nb::handle keys, nb::handle into,
               const std::stop_source* cancel, const GetOptions& options);
// [None or (code, message)].
nb::object Push(Connection& connection, nb::handle fingerprint, nb::handle parts,
                nb::handle reservation_ttl, nb::handle deadline, const std::string& trace);
// The number of a staged push, which belongs to the connection.
uint64_t Stage(Connection& connection, nb::handle fingerprint, nb::handle parts,
               nb::handle reservation_ttl, nb::handle deadline, nb::handle commit_deadline,
               const std::string& trace);
// [None or (code, message)].
nb::object CommitStaged(Connection& connection, uint64_t id);
// (present, queued, absent, refused, seconds).
nb::object Prefetch(Connection& connection, nb::handle fingerprint, nb::handle keys,
                    nb::handle needed_in, nb::handle deadline, const std::string& trace);
// [tier or None].
nb::object Exists(Connection& connection, nb::handle fingerprint, nb::handle keys,
                  nb::handle deadline, const std::string& trace);
double RenewLease(Connection& connection, const LeaseHandle& lease, nb::handle ttl,
                  nb::handle deadline, const std::string& trace);
void Flush(Connection& connection, nb::handle deadline, const std::string& trace);
// Dictionaries of the fields.
nb::object Stat(Connection& connection, nb::handle deadline, const std::string& trace);
nb::object Stats(Connection& connection);
uint64_t Watch(Connection& connection, nb::handle fingerprint, bool snapshot);
// FromEvent, or None when `wait` has passed.
nb::object NextEvent(Connection& connection, uint64_t stream, nb::handle wait);

// None: plaintext.
client::TlsOptions ToTls(nb::handle tls);
// (kind, node_epoch, sequence, fingerprint, key, parent, tier).
nb::tuple FromEvent(const client::CacheEvent& event);
// Between looks for a signal (Ctrl-C) while an event is awaited.
inline constexpr Duration kSignalPeriod = std::chrono::milliseconds(100);

}  // namespace cairn::python
