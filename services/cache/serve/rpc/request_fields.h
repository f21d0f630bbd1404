#pragma once
// Converts the fields of requests to plain values. INVALID_ARGUMENT names the field, the value and
// what was expected.
//
// These are the checks that need no state of the node. The engine makes the checks that do (is the
// lease known, does a part lie in the grid of the namespace).

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/v1/cache.pb.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

using SessionToken = std::array<uint8_t, 16>;

inline constexpr uint32_t kMaxTtlMs = 600'000;
inline constexpr size_t kMaxIdsPerCall = 65536;
inline constexpr uint64_t kMaxPartBytes = 64ull << 20;
inline constexpr size_t kMaxClientName = 128;

Result<SessionToken> ToSessionToken(std::string_view bytes);
// Empty: nullopt.
Result<std::optional<Digest>> ToOptionalDigest(std::string_view bytes, std::string_view field);
// Whole milliseconds, rounded up.
uint32_t ToMs(Duration duration);
Result<Duration> ToTtl(uint32_t ms, const std::string& field);
// Finite, 0 to `max`.
Status CheckNumber(double value, double max, const std::string& field);
Status CheckId(uint64_t id, const std::string& field);
// Each at least 1; min to max of them.
Status CheckIds(std::span<const uint64_t> ids, size_t min, size_t max, const std::string& field);
// At most 4 ids of nodes, of 1 to 128 characters each.
Status CheckHolders(std::span<const std::string> holders, const std::string& field);
Status CheckClientName(std::string_view name);

struct FetchRange {
  LeaseId lease = 0;
  uint32_t block_begin = 0, block_end = 0, layer_begin = 0, layer_end = 0;
};
Result<FetchRange> ToFetchRange(const v1::FetchRequest& request);
// The wanted rows; none: whole slices are wanted. Their masks are the request's. Checks that need
// the layout are made by the engine.
Result<std::vector<RowGroup>> ToRowGroups(const v1::FetchRequest& request);

// Parts of one Reserve; `layout` is the namespace's.
Result<std::vector<ReservePartRequest>> ToParts(const v1::ReserveRequest& request,
                                                const Layout& layout);

}  // namespace cairn::cache
