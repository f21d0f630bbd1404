#include "protocol/wire/request_bounds.h"

#include "cairn/common/namespace_spec.h"
#include "cairn/common/rows.h"
#include "common/keys/call_limits.h"

namespace cairn::wire {
namespace {

// As many as a layout has layers: neighbours that are alike may come apart.
constexpr uint64_t kMostGroups = 65535;
// Four times those of a layout without such neighbours.
constexpr uint64_t kMostPlanes = 16384;
constexpr uint64_t kMostIds = 65536;
// As model/request_limits.h, which is above this folder.
constexpr uint64_t kMostMessages = 1024;
constexpr uint64_t kMostStops = 16;
// Four words for each block.
constexpr uint64_t kMostMaskWords = 4 * kMaxRowGroups;
// In one Announce, of all kinds.
constexpr uint64_t kMostWaymarks = 4096;

constexpr rpc::FieldBound kBounds[] = {
    {"cairn.v1.NativeLayout.groups", kMostGroups},
    {"cairn.v1.LayerGroup.planes", kMostPlanes},
    {"cairn.v1.OpaqueLayout.pools", kMaxPools},
    {"cairn.v1.JointQuestion.pools", kMaxPools},
    {"cairn.v1.MatchRequest.holders", kMaxHolders},
    {"cairn.v1.Lookup.holders", kMaxHolders},
    {"cairn.v1.FetchRequest.rows", kMaxRowGroups},
    {"cairn.v1.RowGroup.mask", kMostMaskWords},
    {"cairn.v1.ReserveRequest.parts", kMaxPartsPerCall},
    {"cairn.v1.CommitRequest.reservation_ids", kMaxPartsPerCall},
    {"cairn.v1.AbortRequest.reservation_ids", kMostIds},
    {"cairn.v1.ReleaseRequest.lease_ids", kMostIds},
    {"cairn.v1.LinkOpenRequest.memories", 256},
    {"cairn.v1.LinkMoveRequest.pieces", 4096},
    {"cairn.v1.AnnounceRequest.memory_adds", kMostWaymarks},
    {"cairn.v1.AnnounceRequest.disk_adds", kMostWaymarks},
    {"cairn.v1.AnnounceRequest.now_in_memory", kMostWaymarks},
    {"cairn.v1.AnnounceRequest.now_on_disk", kMostWaymarks},
    {"cairn.v1.AnnounceRequest.removes", kMostWaymarks},
    {"cairn.v1.FindRequest.waymarks", 64},
    {"cairn.v1.BumpPage.bumps", 4096},
    {"cairn.v1.ChatPrompt.messages", kMostMessages},
    // Models' contexts are shorter. Each takes four bytes.
    {"cairn.v1.TokenPrompt.ids", uint64_t{1} << 24},
    {"cairn.v1.GenerateRequest.stop", kMostStops},
};

}  // namespace

const rpc::FrameBounds& RequestBounds() {
  static const rpc::FrameBounds bounds(kBounds);
  return bounds;
}

}  // namespace cairn::wire
