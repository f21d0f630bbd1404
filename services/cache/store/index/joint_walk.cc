#include "services/cache/store/index/joint_walk.h"

#include <algorithm>
#include <utility>

namespace cairn::cache {
namespace {

// Puts the walk over one pool behind those over the others.
void Append(const BlockIndex::Walk& part, BlockIndex::Walk* walk) {
  walk->matched += part.matched;
  walk->bytes += part.bytes;
  walk->prefetched += part.prefetched;
  for (const BlockIndex::Run& run : part.runs) {
    if (!walk->runs.empty() && walk->runs.back().tier == run.tier) {
      walk->runs.back().blocks += run.blocks;
      walk->runs.back().bytes += run.bytes;
    } else {
      walk->runs.push_back(run);
    }
  }
  walk->path_runs.insert(walk->path_runs.end(), part.path_runs.begin(), part.path_runs.end());
}

// A link may have moved blocks of another pool that were matched before it: they follow blocks of
// this pool if a client named a parent of another pool before that parent was here. Nothing has
// left meanwhile, because the lock of the index is held.
void FindPathsAgain(BlockIndex& index, uint32_t now, JointWalk* walk) {
  walk->walk.path_runs.clear();
  size_t at = 0;
  for (const PoolRun& run : walk->answer.pool_runs) {
    const auto keys = std::span<const BlockKey>(walk->keys).subspan(at, run.blocks);
    const BlockIndex::Walk part =
        index.Match(keys, now, /*touch=*/false, NextUse::kUnknown, run.pool);
    CAIRN_CHECK(part.matched == run.blocks);
    walk->walk.path_runs.insert(walk->walk.path_runs.end(), part.path_runs.begin(),
                                part.path_runs.end());
    at += run.blocks;
  }
}

}  // namespace

JointPlan::JointPlan(const Layout& layout, const JointQuestion& question,
                     std::span<const BlockKey> unit_keys)
    : unit_tokens(layout.block_tokens),
      needs(NeedsOf(layout, question, unit_keys.size())),
      step(std::max<uint32_t>(1, question.step_tokens / layout.block_tokens)),
      most(question.most_tokens == 0 ? unit_keys.size()
                                     : question.most_tokens / layout.block_tokens),
      all(question.all) {
  for (size_t i = 0; i < needs.size(); ++i) {
    const uint32_t pool = question.pools[i].pool;
    pools.push_back({pool, PoolKeys(unit_keys, needs[i].units, pool)});
  }
}

Result<JointWalk> WalkJointly(BlockIndex& index, const JointPlan& plan, uint32_t now, bool touch,
                              NextUse next) {
  std::vector<BlockNeed> needs = plan.needs;
  for (size_t i = 0; i < needs.size(); ++i) {
    if (needs[i].tail != 0) continue;
    const auto& [pool, keys] = plan.pools[i];
    needs[i].blocks = index.Match(keys, now, /*touch=*/false, NextUse::kUnknown, pool).matched;
  }
  RestorableLengths lengths =
      FindRestorable(needs, plan.step, plan.most, plan.all, [&](size_t need, uint32_t block) {
        const auto& [pool, keys] = plan.pools[need];
        const auto ref = index.FindServed(keys[block], now);
        return ref && index.PoolAt(*ref) == pool;
      });
  JointWalk out;
  out.answer.restorable_tokens = lengths.longest * plan.unit_tokens;
  out.answer.restorable = std::move(lengths.bits);
  if (lengths.lost) {
    const auto& [pool, keys] = plan.pools[lengths.lost->need];
    out.answer.limiting_pool = pool;
    if (lengths.lost->block < keys.size()) out.lost = keys[lengths.lost->block];
  }
  bool linked = false;
  for (size_t i = 0; i < needs.size(); ++i) {
    const auto [first, end] = NeededOf(needs[i], lengths.longest);
    if (first == end) continue;
    const auto& [pool, keys] = plan.pools[i];
    const auto needed = std::span(keys).subspan(first, end - first);
    const BlockIndex::Walk part = index.Match(needed, now, touch, next, pool);
    if (part.matched != needed.size()) {
      return InvalidArgument(
          "field 'keys': got the key of block {} of pool {} twice, expected keys that differ",
          first + part.matched, pool);
    }
    linked |= part.linked;
    out.answer.pool_runs.push_back({pool, first, end - first});
    out.keys.insert(out.keys.end(), needed.begin(), needed.end());
    Append(part, &out.walk);
  }
  if (linked) FindPathsAgain(index, now, &out);
  return out;
}

}  // namespace cairn::cache
