#include "protocol/wire/joint.h"

#include <algorithm>

namespace cairn::wire {
namespace {

bool Asks(const JointQuestion& question, uint32_t pool) {
  return std::any_of(question.pools.begin(), question.pools.end(),
                     [pool](const PoolNeed& need) { return need.pool == pool; });
}

Status Contradicts(std::string_view what) {
  return Errorf(StatusCode::kInternal, "match: the node's answer over pools {}", what);
}

}  // namespace

void ToProto(const JointQuestion& question, v1::JointQuestion* out) {
  for (const PoolNeed& need : question.pools) {
    v1::PoolNeed* to = out->add_pools();
    to->set_pool(need.pool);
    to->set_tail_tokens(need.tail_tokens);
    to->set_proof_blocks(need.proof_blocks);
  }
  out->set_step_tokens(question.step_tokens);
  out->set_most_tokens(question.most_tokens);
  out->set_all(question.all);
}

Result<JointQuestion> FromProto(const v1::JointQuestion& proto) {
  if (proto.pools_size() < 1 || proto.pools_size() > static_cast<int>(kMaxPools)) {
    return InvalidArgument("field 'joint.pools': got {} pools, expected 1 to {}",
                           proto.pools_size(), kMaxPools);
  }
  JointQuestion question{
      .step_tokens = proto.step_tokens(), .most_tokens = proto.most_tokens(), .all = proto.all()};
  for (const v1::PoolNeed& need : proto.pools()) {
    question.pools.push_back({.pool = need.pool(),
                              .tail_tokens = need.tail_tokens(),
                              .proof_blocks = need.proof_blocks()});
  }
  return question;
}

void ToProto(const JointAnswer& answer, v1::JointAnswer* out) {
  out->set_restorable_tokens(answer.restorable_tokens);
  for (const PoolRun& run : answer.pool_runs) {
    v1::PoolRun* to = out->add_pool_runs();
    to->set_pool(run.pool);
    to->set_first_block(run.first_block);
    to->set_blocks(run.blocks);
  }
  if (answer.limiting_pool) out->set_limiting_pool(*answer.limiting_pool);
  out->set_restorable(answer.restorable);
}

Result<JointAnswer> FromProto(const v1::JointAnswer& proto, const JointQuestion& question,
                              uint32_t blocks) {
  if (static_cast<size_t>(proto.pool_runs_size()) > question.pools.size()) {
    return Contradicts("has more runs than the question has pools");
  }
  JointAnswer answer{.restorable_tokens = proto.restorable_tokens(),
                     .restorable = proto.restorable()};
  uint64_t leased = 0;
  for (const v1::PoolRun& run : proto.pool_runs()) {
    if (!Asks(question, run.pool())) return Contradicts("names a pool that was not asked for");
    answer.pool_runs.push_back({run.pool(), run.first_block(), run.blocks()});
    leased += run.blocks();
  }
  if (leased != blocks) return Contradicts("has other blocks than the lease");
  if (question.most_tokens != 0 && answer.restorable_tokens > question.most_tokens) {
    return Contradicts("is longer than the limit of the question");
  }
  if (proto.has_limiting_pool()) answer.limiting_pool = proto.limiting_pool();
  return answer;
}

}  // namespace cairn::wire
