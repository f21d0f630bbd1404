// Matches of a same-node session: answered at once, or when a source has answered.

#include <bit>

#include "services/cache/serve/local/local_server_session.h"

namespace cairn::cache {

using shm::DecodedSubmission;

Status LocalServerSession::Match(const DecodedSubmission& call, uint64_t cookie,
                                 shm::Completion* done, bool* wait) {
  CAIRN_ASSIGN_OR_RETURN(const uint32_t block_tokens, CheckTenant(call.fingerprint));
  LocalBuffers& buffers = *services_.buffers;
  buffers.keys.resize(call.count);
  shm::CopyIn(ring_.scratch(), call.input, buffers.keys.data(), call.count);
  const bool lease = (call.flags & shm::kNoLease) == 0;
  buffers.placed.clear();
  CAIRN_ASSIGN_OR_RETURN(
      MatchResult match,
      in_place_.MatchInPlace(
          {.session = options_.session,
           .fingerprint = call.fingerprint,
           .keys = buffers.keys,
           .lease = lease,
           .prefill_tokens_per_second = static_cast<double>(std::bit_cast<float>(call.argument)),
           .trace = {},
           .next = static_cast<NextUse>((call.flags & shm::kNextUse) >> shm::kNextUseShift)},
          MostPlaces(call), WantsPlaces(call) ? &buffers.placed : nullptr, reach()));
  if (match.lease) {
    if (held_bytes() + match.bytes > options_.quota_bytes) {
      const LeaseId id = *match.lease;
      (void)services_.engine->Release(options_.session, {&id, 1});
      return Errorf(StatusCode::kResourceExhausted,
                    "leases: {} bytes and {} more, the session's limit is {}", held_bytes(),
                    match.bytes, options_.quota_bytes);
    }
    leases_.emplace(*match.lease, HeldLease{.bytes = match.bytes});
    leased_bytes_ += match.bytes;
    LocalStats::Add(services_.stats->held_bytes, match.bytes);
  }
  if (match.further != nullptr) {
    const auto further = std::move(match.further);
    auto answer = std::make_shared<LateMatch>(services_.engine, options_.session);
    further->Find(TimePoint::max(),
                  [answer](Result<MatchResult> found) { answer->Set(std::move(found)); });
    matches_looked_ = services_.clock->Now();
    waiting_matches_.push_back({cookie, call, block_tokens, match.lease, std::move(answer)});
    *wait = true;
    return OkStatus();
  }
  AnswerMatch(call, match, block_tokens, done);
  return OkStatus();
}

void LocalServerSession::AnswerMatch(const DecodedSubmission& call, const MatchResult& match,
                                     uint32_t block_tokens, shm::Completion* done) {
  if (services_.observer != nullptr) services_.observer->OnMatch(match, call.count, block_tokens);
  done->lease = match.lease.value_or(0);
  done->matched = match.matched_blocks;
  done->bytes = match.bytes;
  done->miss_reason = static_cast<uint8_t>(match.miss_reason);
  done->estimated_seconds = match.estimated_fetch_seconds;
  if (WantsPlaces(call)) WritePlaces(call, done->lease, done);
}

Status LocalServerSession::AnswerLate(const WaitingMatch& waiting, const Result<MatchResult>& match,
                                      shm::Completion* done) {
  if (!match.ok()) {
    // The client never learns of the lease on what was here.
    if (waiting.lease && ForgetLease(*waiting.lease)) {
      (void)services_.engine->Release(options_.session, {&*waiting.lease, 1});
    }
    return match.status();
  }
  services_.buffers->placed.clear();
  if (match->lease) {
    // Blocks of a source are not held here. A lease that has only such blocks is new.
    leases_.emplace(*match->lease, HeldLease());
    if (WantsPlaces(waiting.call)) {
      CAIRN_RETURN_IF_ERROR(in_place_.Locate({.session = options_.session,
                                              .lease = *match->lease,
                                              .max_places = MostPlaces(waiting.call),
                                              .reach = reach()},
                                             &services_.buffers->placed));
    }
  }
  AnswerMatch(waiting.call, *match, waiting.block_tokens, done);
  return OkStatus();
}

void LocalServerSession::AnswerMatches() {
  for (size_t left = waiting_matches_.size(); left > 0; --left) {
    WaitingMatch waiting = std::move(waiting_matches_.front());
    waiting_matches_.pop_front();
    std::optional<Result<MatchResult>> match = waiting.answer->Take();
    if (!match) {
      waiting_matches_.push_back(std::move(waiting));
      continue;
    }
    shm::Completion done;
    done.cookie = waiting.cookie;
    const Status status = AnswerLate(waiting, *match, &done);
    Finish(waiting.call, status, &done);
  }
}

}  // namespace cairn::cache
