#include "services/cache/serve/rpc/lookup.h"

#include "protocol/wire/convert.h"
#include "protocol/wire/joint.h"
#include "services/cache/serve/rpc/request_fields.h"

namespace cairn::cache {
namespace {

constexpr double kMaxTokensPerSecond = 1e9;

}  // namespace

Result<MatchResult> Lookups::MatchHere(const Question& question, Asked* asked) {
  CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                         Digest::FromBytes(question.fingerprint, "fingerprint"));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, wire::KeysFromProto(question.keys));
  CAIRN_ASSIGN_OR_RETURN(const Duration ttl, ToTtl(question.lease_ttl_ms, "lease_ttl_ms"));
  CAIRN_RETURN_IF_ERROR(CheckNumber(question.prefill_tokens_per_second, kMaxTokensPerSecond,
                                    "prefill_tokens_per_second"));
  CAIRN_RETURN_IF_ERROR(CheckHolders(question.holders, "holders"));
  CAIRN_ASSIGN_OR_RETURN(const NextUse next, wire::ToNextUse(question.next, "next"));
  CAIRN_ASSIGN_OR_RETURN(const Duration wait, ToTtl(question.wait_ms, "wait_ms"));
  if (question.wait_blocks > keys.size()) {
    return InvalidArgument("wait_blocks: got {}, expected at most the {} keys",
                           question.wait_blocks, keys.size());
  }
  if (question.announce && !question.lease) {
    return InvalidArgument("announce: got true with no_lease, expected one of them");
  }
  JointQuestion joint;
  if (question.joint != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(joint, wire::FromProto(*question.joint));
  }
  CAIRN_ASSIGN_OR_RETURN(const auto spec, engine_->GetNamespaceFor(question.session, fingerprint));
  const bool waits = wait > Duration(0) && !question.lease;
  *asked = {keys.size(), spec->layout.block_tokens, !waits && !question.announce, joint};
  return engine_->Match({.session = question.session,
                         .fingerprint = fingerprint,
                         .keys = keys,
                         .lease_ttl = ttl,
                         .lease = question.lease,
                         .prefill_tokens_per_second = question.prefill_tokens_per_second,
                         .trace = question.trace,
                         .holders = question.holders,
                         .next = next,
                         .wait = wait,
                         .wait_blocks = question.wait_blocks,
                         .announce = question.announce,
                         .joint = std::move(joint)});
}

void ToProto(const MatchResult& result, v1::MatchResponse* out) {
  out->set_matched_blocks(result.matched_blocks);
  out->set_lease_id(result.lease.value_or(0));
  out->set_lease_ttl_ms(result.lease ? ToMs(result.lease_ttl) : 0);
  for (const TierRun& run : result.tiers) {
    v1::TierRun* to = out->add_tiers();
    to->set_tier(wire::TierToProto(run.tier));
    to->set_blocks(run.blocks);
    to->set_bytes(run.bytes);
    to->set_seconds(run.seconds);
  }
  out->set_miss_reason(wire::MissReasonToProto(result.miss_reason));
  out->set_estimated_fetch_seconds(result.estimated_fetch_seconds);
  out->set_bytes(result.bytes);
  // Also a match over pools that found nothing says which pool was in its way.
  const JointAnswer& joint = result.joint;
  if (joint.restorable_tokens > 0 || joint.limiting_pool || !joint.restorable.empty()) {
    wire::ToProto(joint, out->mutable_joint());
  }
}

}  // namespace cairn::cache
