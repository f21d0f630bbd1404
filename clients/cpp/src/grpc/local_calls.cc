// GrpcCacheClient over the same-node session: what it answers there, and when gRPC answers instead.

#include <algorithm>
#include <utility>

#include "clients/cpp/src/grpc/grpc_cache_client.h"
#include "clients/cpp/src/local/local_fetch.h"
#include "clients/cpp/src/local/local_push.h"

namespace cairn::client {
namespace {

// Leases of the same-node session have no deadline of their own.
constexpr Duration kNoExpiry = std::chrono::hours(24 * 365);
constexpr Duration kDefaultTtl = std::chrono::seconds(30);

void Add(std::atomic<uint64_t>& counter, uint64_t n) {
  counter.fetch_add(n, std::memory_order_relaxed);
}

constexpr auto kLocal = static_cast<size_t>(Path::kLocal);

}  // namespace

bool GrpcCacheClient::Answered(const Status& status) {
  if (local_.only_local() || !local::LocalPath::FallsBack(status.code())) return true;
  Add(totals_.local_fallbacks, 1);
  return false;
}

bool GrpcCacheClient::MatchLocal(const Session::Current& session, const Digest& fingerprint,
                                 std::span<const BlockKey> keys, const MatchOptions& options,
                                 TimePoint begin, MatchOutcome* outcome, Status* status) {
  const TimePoint deadline = begin + options.deadline;
  const auto local = local_.Get(session.local, fingerprint, deadline);
  if (local == nullptr) {
    *status = local_.Unavailable();
    return local_.only_local();
  }
  auto matched = local->Match(fingerprint, keys, options, deadline);
  *status = matched.status();
  if (!matched.ok()) return Answered(*status);
  *outcome = std::move(matched->outcome);
  if (matched->pin != nullptr) {
    outcome->lease = NewLease({.id = matched->pin->lease(),
                               .session = session.id,
                               .fingerprint = fingerprint,
                               .blocks = outcome->matched_blocks,
                               .expires_at = begin + kNoExpiry});
    local_.Keep(std::move(matched->pin));
  }
  return true;
}

bool GrpcCacheClient::ExistsLocal(const Session::Current& session, const Digest& fingerprint,
                                  std::span<const BlockKey> keys, TimePoint deadline,
                                  std::vector<std::optional<TierKind>>* tiers, Status* status) {
  const auto local = local_.Get(session.local, fingerprint, deadline);
  if (local == nullptr) {
    *status = local_.Unavailable();
    return local_.only_local();
  }
  auto answer = local->Exists(fingerprint, keys, deadline);
  *status = answer.status();
  if (!answer.ok()) return Answered(*status);
  *tiers = std::move(*answer);
  return true;
}

bool GrpcCacheClient::RenewLocal(const Lease& lease, Duration ttl, TimePoint deadline,
                                 Duration* granted, Status* status) {
  const auto pin = local_.Find(lease.info().session, lease.info().id);
  if (pin == nullptr) return false;
  *status = pin->session()->Renew(pin->lease(), deadline);
  if (status->ok()) *granted = ttl > Duration::zero() ? ttl : kDefaultTtl;
  return true;
}

Status GrpcCacheClient::FetchLocal(std::shared_ptr<local::LeasePin> pin, const Lease& lease,
                                   const FetchRange& range, FetchSink& sink,
                                   const FetchOptions& options, TimePoint deadline,
                                   bool* got_bytes) {
  local::LocalFetch fetch(std::move(pin), lease.info().blocks, range, sink, options, deadline);
  Status status = fetch.Run();
  const local::LocalFetch::Counts& counts = fetch.counts();
  *got_bytes = counts.slices > 0;
  Add(totals_.fetched_slices, counts.slices);
  Add(totals_.corrupt_slices, counts.corrupt);
  Add(totals_.lent_bytes, counts.lent_bytes);
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    Add(totals_.fetched_bytes[tier], counts.bytes[tier]);
    Add(totals_.fetched_by_path[kLocal], counts.bytes[tier]);
  }
  // What was delivered must not come twice.
  if (!status.ok() && (counts.slices > 0 || Answered(status))) return status;
  for (const auto& [begin, end] : fetch.rest()) {
    if (local_.only_local()) {
      for (uint32_t block = begin; block < end; ++block) {
        sink.OnBlockFailed(block, MissReason::kRefused);
      }
      continue;
    }
    const FetchRange rest = {.block_begin = begin,
                             .block_end = end,
                             .layer_begin = range.layer_begin,
                             .layer_end = range.layer_end};
    status = FetchRemote(lease, rest, sink, options, deadline, got_bytes);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

bool GrpcCacheClient::PushLocal(const Session::Current& session, const Digest& fingerprint,
                                std::span<const PartToPush> parts, TimePoint deadline,
                                std::vector<Status>* results, Status* status) {
  const auto local = local_.Get(session.local, fingerprint, deadline);
  *status = OkStatus();
  if (local == nullptr) {
    *status = local_.Unavailable();
    return local_.only_local();
  }
  *status = local::PushParts(
      local, fingerprint, parts, deadline,
      [this](uint64_t, uint64_t bytes) { Add(totals_.pushed_local, bytes); }, results);
  if (!status->ok() && Answered(*status)) return true;
  // What was not tried goes over gRPC, and what the session had no room for.
  results->resize(parts.size(), Status(StatusCode::kResourceExhausted, "not tried"));
  *status = OkStatus();
  return local_.only_local() || std::none_of(results->begin(), results->end(), [](const Status& s) {
           return s.code() == StatusCode::kResourceExhausted;
         });
}

Result<std::unique_ptr<InPlacePush>> GrpcCacheClient::BeginPush(const Digest& fingerprint,
                                                                std::span<const PartToWrite> parts,
                                                                const PushOptions& options) {
  const auto buffered = [&](std::span<const PartToWrite> some) {
    return NewBufferedPush(*this, fingerprint, some, options, *buffers_);
  };
  std::unique_ptr<InPlacePush> push;
  const TimePoint until =
      std::chrono::steady_clock::now() + options.room_deadline.value_or(options.deadline);
  const Status status = Guarded(until, [&](const Session::Current& session) -> Status {
    const auto local = local_.Get(session.local, fingerprint, until);
    if (local == nullptr) return local_.only_local() ? local_.Unavailable() : OkStatus();
    auto begun = local::LocalPush::Begin(
        local, fingerprint, parts, options,
        local_.only_local() ? local::LocalPush::Rest() : local::LocalPush::Rest(buffered),
        [this](uint64_t committed, uint64_t bytes) {
          Add(totals_.pushed_parts, committed);
          Add(totals_.pushed_bytes, bytes);
          Add(totals_.pushed_local, bytes);
        });
    if (begun.ok()) {
      push = std::move(*begun);
      return OkStatus();
    }
    return Answered(begun.status()) ? begun.status() : OkStatus();
  });
  if (status.code() == StatusCode::kNotFound) session_.ReopenNamespaces();
  CAIRN_RETURN_IF_ERROR(status);
  if (push == nullptr) push = buffered(parts);
  return push;
}

}  // namespace cairn::client
