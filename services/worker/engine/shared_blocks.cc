#include "services/worker/engine/shared_blocks.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

SharedBlocks::SharedBlocks(BlockClaims& claims, KvSequence& sequence, std::vector<BlockKey> names,
                           size_t most_adopted)
    : claims_(claims),
      sequence_(sequence),
      block_tokens_(sequence.layout().block_tokens),
      names_(std::move(names)),
      most_adopted_(most_adopted),
      adopted_(names_.size()) {}

uint32_t SharedBlocks::Adopt() {
  uint32_t taken = 0;
  auto block = static_cast<size_t>(sequence_.length() / block_tokens_);
  const size_t end = std::min(names_.size(), most_adopted_);
  for (; block < end; ++block) {
    const std::byte* const own = sequence_.pages()[block];
    if (!sequence_.Adopt(static_cast<int64_t>(block), names_[block])) break;
    sequence_.SetLength(static_cast<int64_t>(block + 1) * block_tokens_);
    if (sequence_.pages()[block] == own) continue;  // Computed before loans were found broken.
    adopted_[block] = true;
    ++taken;
  }
  return taken;
}

int64_t SharedBlocks::Unshared(int64_t count) const {
  const int64_t begin = sequence_.length() / block_tokens_;
  for (int64_t block = begin; (block - begin) * block_tokens_ < count; ++block) {
    const auto b = static_cast<size_t>(block);
    if (b >= std::min(names_.size(), most_adopted_)) break;
    if (claims_.contains(names_[b]) || sequence_.Published({&names_[b], 1}) > 0) {
      return (block - begin) * block_tokens_;
    }
  }
  return count;
}

void SharedBlocks::Claim(int64_t tokens) {
  if (names_.empty()) return;
  const auto begin = static_cast<size_t>(sequence_.length() / block_tokens_);
  claimed_ = std::span(names_).subspan(begin, static_cast<size_t>(tokens / block_tokens_));
  claims_.insert(claimed_.begin(), claimed_.end());
}

void SharedBlocks::Unclaim() {
  for (const BlockKey& name : claimed_) claims_.erase(name);
  claimed_ = {};
}

void SharedBlocks::Publish(int64_t begin, int64_t end) {
  if (names_.empty() || sequence_.FirstBrokenLoan() != sequence_.page_count()) return;
  for (int64_t b = begin; b < end; ++b) {
    if (!sequence_.lent(b)) sequence_.Publish(b, names_[static_cast<size_t>(b)]);
  }
}

}  // namespace cairn::worker
