#include "common/keys/restorable_lengths.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "common/keys/call_limits.h"

namespace cairn {
namespace {

// Blocks that one question may look at in all pools: the lock of a namespace is held meanwhile.
constexpr uint64_t kMaxBlocksAsked = 4 * uint64_t{kMaxKeysPerCall};

// A pool with a tail, looked at from its end to its beginning.
class TailScan {
 public:
  TailScan(const BlockNeed& need, size_t number, const HasBlock& has)
      : need_(&need), number_(number), has_(&has) {}

  size_t number() const { return number_; }
  uint32_t tail() const { return need_->tail; }

  // Whether all that `length` needs is there. REQUIRES: lengths fall from call to call; it is a
  // multiple of the pool's units, and its proof lies within the blocks.
  bool Holds(uint64_t length) {
    const auto end = static_cast<uint32_t>(length / need_->units + need_->proof);
    const uint32_t first = NeededOf(*need_, length).first;
    // Everything that was looked at lies after this length.
    if (end < begin_) begin_ = end;
    for (; begin_ > first; --begin_) {
      if (!(*has_)(number_, begin_ - 1)) return false;
    }
    return true;
  }
  // After Holds said no: the missing block, and the longest length that does not need it.
  uint32_t missing() const { return begin_ - 1; }
  uint64_t LongestWithoutIt() const {
    return missing() > need_->proof ? uint64_t{missing() - need_->proof} * need_->units : 0;
  }

 private:
  const BlockNeed* need_;
  size_t number_;
  const HasBlock* has_;
  // Blocks from here to the end of the last length that was asked for are there.
  uint32_t begin_ = std::numeric_limits<uint32_t>::max();
};

// The least common multiple of the step and all block lengths. 0: it is more than `most`.
uint64_t GrainOf(std::span<const BlockNeed> needs, uint32_t step, uint64_t most) {
  uint64_t grain = step;
  for (const BlockNeed& need : needs) {
    if (grain > most) return 0;
    // Both are less than 2^32, or the first was at most `most`.
    grain = grain / std::gcd(grain, uint64_t{need.units}) * need.units;
  }
  return grain > most ? 0 : grain;
}

}  // namespace

BlockRange NeededOf(const BlockNeed& need, uint64_t length) {
  const auto end = static_cast<uint32_t>(length / need.units);
  return {need.tail == 0 || need.tail > end ? 0 : end - need.tail, end};
}

RestorableLengths FindRestorable(std::span<const BlockNeed> needs, uint32_t step, uint64_t most,
                                 bool all, const HasBlock& has) {
  RestorableLengths out;
  if (all) out.bits.assign((most / step + 7) / 8, '\0');
  const uint64_t grain = GrainOf(needs, step, most);
  if (grain == 0) return out;
  uint64_t length = most / grain * grain;
  std::vector<TailScan> scans;
  for (size_t i = 0; i < needs.size(); ++i) {
    const BlockNeed& need = needs[i];
    const uint64_t end =
        need.blocks > need.proof ? uint64_t{need.blocks - need.proof} * need.units : 0;
    if (end < length) {
      length = end / grain * grain;
      out.lost = LostBlock{i, need.blocks};
    }
    if (need.tail > 0) scans.emplace_back(need, i, has);
  }
  // Short tails say no after fewer blocks.
  std::stable_sort(scans.begin(), scans.end(),
                   [](const TailScan& a, const TailScan& b) { return a.tail() < b.tail(); });
  while (length > 0) {
    const auto lacks = std::find_if(scans.begin(), scans.end(),
                                    [length](TailScan& scan) { return !scan.Holds(length); });
    if (lacks != scans.end()) {
      if (out.longest == 0) out.lost = LostBlock{lacks->number(), lacks->missing()};
      length = lacks->LongestWithoutIt() / grain * grain;
      continue;
    }
    if (out.longest == 0) out.longest = length;
    if (!all) break;
    const uint64_t bit = length / step - 1;
    out.bits[bit / 8] = static_cast<char>(out.bits[bit / 8] | (1 << (bit % 8)));
    length -= grain;
  }
  return out;
}

std::vector<BlockNeed> NeedsOf(const Layout& layout, const JointQuestion& question,
                               size_t unit_keys) {
  std::vector<BlockNeed> needs;
  needs.reserve(question.pools.size());
  for (const PoolNeed& pool : question.pools) {
    const uint32_t tokens = layout.BlockTokensOf(pool.pool);
    const uint32_t units = tokens / layout.block_tokens;
    needs.push_back({.units = units,
                     .tail = pool.tail_tokens / tokens + (pool.tail_tokens % tokens != 0 ? 1 : 0),
                     .proof = pool.proof_blocks,
                     .blocks = static_cast<uint32_t>(unit_keys / units)});
  }
  return needs;
}

// Long: the fields of a question one after the other.
Status CheckQuestion(const Layout& layout, const JointQuestion& question, size_t unit_keys) {
  const std::span<const Pool> pools = layout.Pools();
  if (pools.empty()) {
    return InvalidArgument("field 'pools': got {}, expected none: the namespace has no pools",
                           question.pools.size());
  }
  if (question.pools.size() > pools.size()) {
    return InvalidArgument("field 'pools': got {}, expected at most the namespace's {}",
                           question.pools.size(), pools.size());
  }
  uint64_t blocks = 0;
  uint32_t asked = 0;  // A bit for each pool.
  for (size_t i = 0; i < question.pools.size(); ++i) {
    const PoolNeed& need = question.pools[i];
    if (need.pool >= pools.size()) {
      return InvalidArgument("field 'pools[{}].pool': got {}, expected 0 to {}", i, need.pool,
                             pools.size() - 1);
    }
    if ((asked >> need.pool & 1u) != 0) {
      return InvalidArgument("field 'pools[{}].pool': got {} twice, expected pools that differ", i,
                             need.pool);
    }
    asked |= 1u << need.pool;
    if (need.proof_blocks > kMaxProofBlocks) {
      return InvalidArgument("field 'pools[{}].proof_blocks': got {}, expected 0 to {}", i,
                             need.proof_blocks, kMaxProofBlocks);
    }
    blocks += unit_keys * layout.block_tokens / pools[need.pool].block_tokens;
  }
  if (blocks > kMaxBlocksAsked) {
    return InvalidArgument("field 'keys': got {} blocks in {} pools, expected at most {}", blocks,
                           question.pools.size(), kMaxBlocksAsked);
  }
  if (question.step_tokens % layout.block_tokens != 0) {
    return InvalidArgument("field 'step_tokens': got {}, expected a multiple of {}",
                           question.step_tokens, layout.block_tokens);
  }
  if (const uint64_t tokens = uint64_t{unit_keys} * layout.block_tokens;
      question.most_tokens > tokens) {
    return InvalidArgument("field 'most_tokens': got {}, expected at most the {} of the keys",
                           question.most_tokens, tokens);
  }
  return OkStatus();
}

}  // namespace cairn
