#include "services/worker/engine/prompt_push.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

void PromptPush::Announce(std::span<const BlockKey> wanted) {
  const PromptRequest& request = work_.request;
  if (!request.hand_over) return;
  if (!wanted.empty()) promise_ = work_.services.session->Announce(wanted, request.trace);
  if (request.announced) request.announced();
}

void PromptPush::PushNow(std::span<const BlockKey> keys, int64_t end) {
  // Which lineage a lossy prompt has is known at its end. What was computed over memory that the
  // node has taken back is computed again.
  if (!work_.request.hand_over || work_.services.lossy() || end <= pushed_ ||
      work_.sequence.FirstBrokenLoan() != work_.sequence.page_count()) {
    return;
  }
  Push(keys, pushed_, Lineage::kExact);
  pushed_ = end;
}

void PromptPush::Finish(std::span<const BlockKey> keys, int64_t at_node, Lineage lineage) {
  if (!keys.empty()) Push(keys, std::max(pushed_, at_node), lineage);
  promise_.reset();
}

void PromptPush::Push(std::span<const BlockKey> keys, int64_t first, Lineage lineage) {
  std::vector<ComputedBlock> blocks = Blocks(keys, first, promise_);
  if (blocks.empty()) return;
  const PromptServices& services = work_.services;
  PushQueue& queue = work_.request.hand_over ? *services.urgent : *services.push;
  queue.Enqueue(services.session->fingerprint(), services.session->codec(), std::move(blocks));
  // Turned blocks have keys of their own.
  if (lineage != Lineage::kExact || !work_.request.keys.empty()) return;
  for (const PublishedNamespace& target : services.published) {
    if (target.stage != nullptr) continue;
    const std::vector<BlockKey> own =
        BlockKeyChain(target.ns.fingerprint)
            .Keys(work_.request.tokens, static_cast<uint32_t>(services.block_tokens()));
    services.push->Enqueue(target.ns.fingerprint, *target.codec, Blocks(own, first, nullptr));
  }
}

std::vector<ComputedBlock> PromptPush::Blocks(std::span<const BlockKey> keys, int64_t first,
                                              const std::shared_ptr<const void>& promise) const {
  KvSequence& sequence = work_.sequence;
  const int64_t block_tokens = work_.services.block_tokens();
  const auto end =
      std::min<size_t>(keys.size(), static_cast<size_t>(sequence.length() / block_tokens));
  std::vector<ComputedBlock> blocks;
  for (auto b = static_cast<size_t>(first); b < end; ++b) {
    // Whoever computed it pushes it, but perhaps later than another worker needs it.
    if (shared_.adopted(b) && !work_.request.hand_over) continue;
    ComputedBlock block;
    block.key = keys[b];
    if (b > 0) block.parent = keys[b - 1];
    block.first_position = b * static_cast<uint64_t>(block_tokens);
    block.compute_seconds = work_.block_seconds[b];
    // A page is its layers' slices one after the other.
    block.page = {std::as_const(sequence).LayerSlice(static_cast<int64_t>(b), 0).data(),
                  sequence.layout().page_bytes()};
    block.hold = work_.request.sequence;
    block.stamp = sequence.PageStamp(static_cast<int64_t>(b));
    block.trace = work_.request.trace;
    block.promise = promise;
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace cairn::worker
