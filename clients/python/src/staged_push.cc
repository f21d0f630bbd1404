#include "clients/python/src/staged_push.h"

#include "clients/python/src/sealing.h"
#include "services/common/memory/bulk_copy.h"

namespace cairn::python {

Result<std::unique_ptr<StagedPush>> StagedPush::Make(client::CacheClient& client,
                                                     const OpenNamespace& ns,
                                                     const Digest& fingerprint,
                                                     std::span<const client::PartToWrite> parts,
                                                     std::span<const PartContent> contents,
                                                     const client::PushOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(auto push, client.BeginPush(fingerprint, parts, options));
  const auto slots = push->slots();
  std::unique_ptr<StagedPush> staged(new StagedPush(
      std::move(push), ns.codec, static_cast<uint16_t>(ns.spec.layout.block_tokens)));
  std::vector<CopyRun> runs;
  for (size_t i = 0; i < slots.size(); ++i) {
    const bool wanted = slots[i].status.ok() && !slots[i].room.empty();
    staged->parts_.push_back({wanted ? slots[i].room : std::span<std::byte>(), parts[i].rect,
                              contents[i].lengths});
    if (!wanted) continue;
    const auto slices = static_cast<uint32_t>(staged->parts_.back().lengths.size());
    std::byte* const to = slots[i].room.data() + format::HeaderBytes(slices);
    const BlockBytes<const std::byte>& bytes = contents[i].bytes;
    bytes.ForEachRun(0, bytes.size(), [&](std::span<const std::byte> run, uint64_t done) {
      runs.push_back({to + done, run.data(), run.size()});
    });
  }
  StreamingCopy(runs);
  StreamingFence();
  return staged;
}

Result<std::vector<Status>> StagedPush::Commit() {
  for (const Part& part : parts_) {
    if (part.room.empty()) continue;
    format::SealPart(part.room, codec_, part.rect, block_tokens_, part.lengths);
  }
  return push_->Commit();
}

}  // namespace cairn::python
