#include "clients/cpp/src/local/local_transport.h"

#include <utility>

#include "clients/cpp/src/local/local_fetch.h"
#include "clients/cpp/src/local/local_push.h"

namespace cairn::client::local {
namespace {

// Leases of the same-node session have no deadline of their own.
constexpr Duration kNoExpiry = std::chrono::hours(24 * 365);
constexpr Duration kDefaultTtl = std::chrono::seconds(30);

}  // namespace

std::optional<Result<Matched>> LocalTransport::Match(const TransportCall& call,
                                                     const Digest& fingerprint,
                                                     std::span<const BlockKey> keys,
                                                     const MatchOptions& options) {
  const auto session = local_.Get(call.session, fingerprint, call.deadline);
  if (session == nullptr) return std::nullopt;
  auto found = options.joint.asked()
                   ? session->MatchPools(fingerprint, keys, options, call.deadline)
                   : session->Match(fingerprint, keys, options, call.deadline);
  if (!found.ok()) return found.status();
  Matched matched = {.outcome = std::move(found->outcome)};
  if (found->pin != nullptr) {
    matched.lease = found->pin->lease();
    matched.lease_ttl = kNoExpiry;
    local_.Keep(std::move(found->pin));
  }
  return matched;
}

std::optional<FetchReport> LocalTransport::Fetch(const LeaseInfo& lease, const FetchRange& range,
                                                 FetchSink& sink, const FetchOptions& options,
                                                 TimePoint deadline) {
  std::shared_ptr<LeasePin> pin = local_.Find(lease);
  if (pin == nullptr) return std::nullopt;
  LocalFetch fetch(std::move(pin), lease.blocks, range, sink, options, deadline);
  FetchReport report;
  report.status = fetch.Run();
  report.counts = fetch.counts();
  report.node_answers = report.counts.slices > 0;
  report.rest = fetch.rest();
  report.delivered_of_rest = fetch.delivered_of_rest();
  return report;
}

std::optional<RowReport> LocalTransport::FetchRows(const LeaseInfo& lease, const RowsWanted& wanted,
                                                   RowSink& sink, const FetchOptions& options,
                                                   TimePoint deadline) {
  const std::shared_ptr<LeasePin> pin = local_.Find(lease);
  if (pin == nullptr) return std::nullopt;
  return pin->rows().Read(*pin, lease.blocks, wanted, sink, options, deadline);
}

std::optional<PushReport> LocalTransport::Push(const TransportCall& call, const Digest& fingerprint,
                                               std::span<const PartToPush> parts,
                                               const PushOptions&) {
  const auto session = local_.Get(call.session, fingerprint, call.deadline);
  if (session == nullptr) return std::nullopt;
  return PushParts(session, fingerprint, parts, call.deadline);
}

std::optional<Result<TierList>> LocalTransport::Exists(const TransportCall& call,
                                                       const Digest& fingerprint,
                                                       std::span<const BlockKey> keys,
                                                       const CallOptions&) {
  const auto session = local_.Get(call.session, fingerprint, call.deadline);
  if (session == nullptr) return std::nullopt;
  return session->Exists(fingerprint, keys, call.deadline);
}

std::optional<Result<Duration>> LocalTransport::Renew(const LeaseInfo& lease, Duration ttl,
                                                      const CallOptions&, TimePoint deadline) {
  const auto pin = local_.Find(lease);
  if (pin == nullptr) return std::nullopt;
  const Status renewed = pin->session()->Renew(pin->lease(), deadline);
  if (!renewed.ok()) return renewed;
  return ttl > Duration::zero() ? ttl : kDefaultTtl;
}

std::optional<Result<std::unique_ptr<InPlacePush>>> LocalTransport::BeginPush(
    const TransportCall& call, const Digest& fingerprint, std::span<const PartToWrite> parts,
    const PushOptions& options, const InPlaceHooks& hooks) {
  auto session = local_.Get(call.session, fingerprint, call.deadline);
  if (session == nullptr) return std::nullopt;
  return LocalPush::Begin(std::move(session), fingerprint, parts, options, hooks, call.deadline);
}

}  // namespace cairn::client::local
