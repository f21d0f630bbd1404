// Matches of a same-node session: answered at once, or when a source or the executor has answered.

#include <bit>

#include "services/cache/serve/local/local_server_session.h"

namespace cairn::cache {

using shm::DecodedSubmission;

Status LocalServerSession::Match(const DecodedSubmission& call, uint64_t cookie, TimePoint taken,
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
  CAIRN_RETURN_IF_ERROR(KeepLease(match));
  if (match.further != nullptr) {
    const auto further = std::move(match.further);
    auto answer = std::make_shared<LateMatch>(services_.engine, options_.session);
    further->Find(TimePoint::max(),
                  [answer](Result<MatchResult> found) { answer->Set(std::move(found)); });
    matches_looked_ = taken;
    waiting_matches_.push_back({cookie, call, taken, block_tokens, match.lease, std::move(answer)});
    *wait = true;
    return OkStatus();
  }
  AnswerMatch(call, match, block_tokens, done);
  return OkStatus();
}

Status LocalServerSession::KeepLease(const MatchResult& match) {
  if (!match.lease) return OkStatus();
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
  return OkStatus();
}

Status LocalServerSession::MatchPools(const DecodedSubmission& call, uint64_t cookie,
                                      TimePoint taken, shm::Completion* done, bool* wait) {
  CAIRN_ASSIGN_OR_RETURN(const uint32_t unit_tokens, CheckTenant(call.fingerprint));
  shm::PoolQuestion asked;
  shm::CopyIn(ring_.scratch(), call.input, &asked, 1);
  CAIRN_ASSIGN_OR_RETURN(const JointQuestion question, shm::DecodeQuestion(asked));
  if (call.count > kPoolKeysHere && services_.executor != nullptr) {
    WaitingMatch waiting = {cookie, call, taken, unit_tokens, std::nullopt, nullptr, question};
    if (!pools_under_way_) CAIRN_RETURN_IF_ERROR(BeginPools(&waiting));
    matches_looked_ = taken;
    waiting_matches_.push_back(std::move(waiting));
    *wait = true;
    return OkStatus();
  }
  std::vector<BlockKey>& keys = services_.buffers->keys;
  CopyPoolKeys(call, &keys);
  CAIRN_ASSIGN_OR_RETURN(
      const MatchResult match,
      in_place_.MatchInPlace(PoolsRequest(call, question, keys), 0, nullptr, nullptr));
  return AnswerPools(call, question, unit_tokens, match, done);
}

void LocalServerSession::CopyPoolKeys(const DecodedSubmission& call, std::vector<BlockKey>* keys) {
  const auto question = static_cast<uint32_t>(sizeof(shm::PoolQuestion));
  const shm::Area area = {call.input.offset + question, call.input.bytes - question};
  keys->resize(call.count);
  shm::CopyIn(ring_.scratch(), area, keys->data(), call.count);
}

MatchRequest LocalServerSession::PoolsRequest(const DecodedSubmission& call,
                                              const JointQuestion& question,
                                              std::span<const BlockKey> keys) const {
  return {.session = options_.session,
          .fingerprint = call.fingerprint,
          .keys = keys,
          .lease = (call.flags & shm::kNoLease) == 0,
          .prefill_tokens_per_second = static_cast<double>(std::bit_cast<float>(call.argument)),
          .trace = {},
          .next = static_cast<NextUse>((call.flags & shm::kNextUse) >> shm::kNextUseShift),
          .joint = question};
}

Status LocalServerSession::BeginPools(WaitingMatch* waiting) {
  // The client may change its keys meanwhile, and the session may end.
  struct Match {
    MemoryCharge charge;
    std::vector<BlockKey> keys;
    MatchRequest request;
  };
  auto match = std::make_shared<Match>();
  if (services_.memory != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(
        match->charge,
        services_.memory->Charge(MemoryItem::kSessions, waiting->call.count * sizeof(BlockKey)));
  }
  CopyPoolKeys(waiting->call, &match->keys);
  match->request = PoolsRequest(waiting->call, *waiting->question, match->keys);
  auto answer = std::make_shared<LateMatch>(services_.engine, options_.session);
  CAIRN_RETURN_IF_ERROR(services_.executor->Post([in_place = &in_place_, match, answer] {
    answer->Set(in_place->MatchInPlace(match->request, 0, nullptr, nullptr));
  }));
  waiting->answer = std::move(answer);
  pools_under_way_ = true;
  return OkStatus();
}

Status LocalServerSession::AnswerPools(const DecodedSubmission& call, const JointQuestion& question,
                                       uint32_t unit_tokens, const MatchResult& match,
                                       shm::Completion* done) {
  CAIRN_RETURN_IF_ERROR(KeepLease(match));
  const JointAnswer& joint = match.joint;
  shm::PoolAnswer answer{.restorable_tokens = joint.restorable_tokens,
                         .runs = static_cast<uint32_t>(joint.pool_runs.size()),
                         .limiting_pool = joint.limiting_pool.value_or(shm::PoolAnswer::kNoPool),
                         .bits_bytes = static_cast<uint32_t>(joint.restorable.size())};
  for (size_t i = 0; i < joint.pool_runs.size(); ++i) {
    const PoolRun& run = joint.pool_runs[i];
    answer.entries[i] = {.pool = run.pool, .first_block = run.first_block, .blocks = run.blocks};
  }
  const uint64_t bytes = sizeof(answer) + joint.restorable.size();
  if (bytes > call.output.bytes) {
    if (match.lease && ForgetLease(*match.lease)) {
      (void)services_.engine->Release(options_.session, {&*match.lease, 1});
    }
    return InvalidArgument("field 'output': got {} bytes, expected at least {}", call.output.bytes,
                           bytes);
  }
  shm::CopyOut(ring_.scratch(), call.output, &answer, 1);
  const shm::Area bits = {call.output.offset + static_cast<uint32_t>(sizeof(answer)),
                          static_cast<uint32_t>(joint.restorable.size())};
  shm::CopyOut(ring_.scratch(), bits, joint.restorable.data(), joint.restorable.size());
  if (services_.observer != nullptr) {
    services_.observer->OnMatchPools(match, question, uint64_t{call.count} * unit_tokens);
  }
  done->count = static_cast<uint32_t>(bytes);
  done->lease = match.lease.value_or(0);
  done->matched = match.matched_blocks;
  done->bytes = match.bytes;
  done->miss_reason = static_cast<uint8_t>(match.miss_reason);
  done->estimated_seconds = match.estimated_fetch_seconds;
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
  if (waiting.question) {
    return AnswerPools(waiting.call, *waiting.question, waiting.block_tokens, *match, done);
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
    shm::Completion done;
    done.cookie = waiting.cookie;
    if (waiting.answer == nullptr && !pools_under_way_) {
      if (const Status begun = BeginPools(&waiting); !begun.ok()) {
        (void)Finish(waiting.call, waiting.since, begun, &done);
        continue;
      }
    }
    std::optional<Result<MatchResult>> match;
    if (waiting.answer != nullptr) match = waiting.answer->Take();
    if (!match) {
      waiting_matches_.push_back(std::move(waiting));
      continue;
    }
    if (waiting.question) pools_under_way_ = false;
    const Status status = AnswerLate(waiting, *match, &done);
    (void)Finish(waiting.call, waiting.since, status, &done);
  }
}

}  // namespace cairn::cache
