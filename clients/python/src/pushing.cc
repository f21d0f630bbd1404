#include "clients/python/src/pushing.h"

#include <algorithm>
#include <chrono>

namespace cairn::python {
namespace {

// Limit for the parts that are written before they are committed.
constexpr uint64_t kBatchBytes = 8 << 20;

}  // namespace

Result<std::unique_ptr<client::InPlacePush>> StageParts(client::CacheClient& c,
                                                        const OpenNamespace& ns,
                                                        const Digest& fingerprint,
                                                        std::span<const client::PartToWrite> rooms,
                                                        std::span<const PartContent> contents,
                                                        const client::PushOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(auto push, c.BeginPush(fingerprint, rooms, options));
  const auto slots = push->slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].status.ok() || slots[i].room.empty()) continue;
    const Layout& layout = ns.spec.layout;
    SealPieces(slots[i].room, contents[i], ns.codec, rooms[i].rect,
               static_cast<uint16_t>(layout.BlockTokensOf(layout.PoolOf(rooms[i].rect))),
               push->path() == client::Path::kLocal);
  }
  return push;
}

Result<std::vector<Status>> PushInBatches(client::CacheClient& c, const OpenNamespace& ns,
                                          const Digest& fingerprint,
                                          std::span<const client::PartToWrite> rooms,
                                          std::span<const PartContent> contents,
                                          client::PushOptions options) {
  const TimePoint until = std::chrono::steady_clock::now() + options.deadline;
  std::vector<Status> statuses;
  while (statuses.size() < rooms.size()) {
    const size_t begin = statuses.size();
    size_t end = begin;
    uint64_t bytes = 0;
    do {
      bytes += rooms[end++].bytes;
    } while (end < rooms.size() && bytes + rooms[end].bytes <= kBatchBytes);
    options.deadline =
        std::max<Duration>(until - std::chrono::steady_clock::now(), Duration::zero());
    const auto staged = StageParts(c, ns, fingerprint, rooms.subspan(begin, end - begin),
                                   contents.subspan(begin, end - begin), options);
    const auto pushed =
        staged.ok() ? (*staged)->Commit() : Result<std::vector<Status>>(staged.status());
    if (!pushed.ok()) {
      if (begin == 0) return pushed.status();
      // Parts that were committed before are stored.
      statuses.resize(rooms.size(), pushed.status());
      break;
    }
    statuses.insert(statuses.end(), pushed->begin(), pushed->end());
  }
  return statuses;
}

}  // namespace cairn::python
