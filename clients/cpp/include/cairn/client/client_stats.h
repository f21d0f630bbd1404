#pragma once
// The statistics of a client. Each is declared once, by a row of a table below. From a row come
//
//   the field, the sum over several nodes  ClientStats and AddTotals, here
//   the counter                            clients/cpp/src/core/client_totals.h
//   Python's dict                          clients/python/src/calls.cc
//
// To add one, add a row and the place that counts it. tests/ops/test_statistics.py then names the
// line of clients/python/cairn/types.py.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cairn/client/types.h"

namespace cairn::client {

enum class BreakerState : uint8_t { kClosed, kOpen, kHalfOpen };
std::string_view Name(BreakerState state);

inline constexpr size_t kCallCodeCount = 17;  // Values of absl::StatusCode.

// clang-format off
// ROW(name, help). Counted where it happens.
#define CAIRN_CLIENT_COUNTED(ROW)                                                                  \
  ROW(matches, "Answers to Match.")                                                                \
  ROW(matched_blocks, "Blocks that they matched.")                                                 \
  ROW(fetches, "Fetches that were begun.")                                                         \
  ROW(fetched_slices, "Slices that were verified and delivered.")                                  \
  ROW(lent_bytes, "The part of fetched_bytes that was delivered without a copy.")                  \
  ROW(corrupt_slices, "Slices that did not match their hash here.")                                \
  ROW(fetched_rows, "Rows of one head that FetchRows delivered.")                                  \
  ROW(corrupt_rows, "Groups of rows that did not match their hash here.")                          \
  ROW(pushed_parts, "Parts that the node committed.")                                              \
  ROW(pushed_bytes, "Their bytes.")                                                                \
  ROW(local_fallbacks, "Calls that the same-node path could not serve, made over gRPC.")

// ROW(name, help). Totals that are put together when somebody asks.
#define CAIRN_CLIENT_GATHERED(ROW)                                                                 \
  ROW(local_sessions, "Same-node sessions opened.")                                                \
  ROW(sessions, "Sessions opened, including the first.")                                           \
  ROW(breaker_opened, "How often the circuit breaker opened.")                                     \
  ROW(breaker_rejected, "Calls answered UNAVAILABLE without asking the node.")                     \
  ROW(dropped_releases, "Leases left to expire: too many releases waited.")                        \
  ROW(home_changes, "For a client of several nodes: moves between them.")

// ROW(name, size, help). Counted where it happens.
#define CAIRN_CLIENT_LISTS(ROW)                                                                    \
  ROW(fetched_bytes, kTierCount, "Verified bytes, by their tier.")                                 \
  ROW(fetched_bytes_by_path, kPathCount, "The same bytes, by the path that they took.")            \
  ROW(pushed_bytes_by_path, kPathCount, "The bytes of pushed_bytes, by the path that they took.")  \
  ROW(calls_by_code, kCallCodeCount,                                                               \
      "Calls that ended. A call that a second node answered counts at both.")
// clang-format on

#define CAIRN_CLIENT_FIELD(name, help) uint64_t name = 0;
#define CAIRN_CLIENT_LIST_FIELD(name, size, help) std::array<uint64_t, size> name{};

// Totals since the client was made, and its present state.
struct ClientStats {
  CAIRN_CLIENT_COUNTED(CAIRN_CLIENT_FIELD)
  CAIRN_CLIENT_GATHERED(CAIRN_CLIENT_FIELD)
  CAIRN_CLIENT_LISTS(CAIRN_CLIENT_LIST_FIELD)
  // Now:
  bool connected = false;
  BreakerState breaker = BreakerState::kClosed;
  // For a client of one node: always its address. For a client of several: the home's address,
  // empty if there is none.
  std::string home = {};
  // The name that the home gives itself. Empty before a session opened.
  std::string home_node_id = {};
  Path path = Path::kGrpc;       // Path of the next Match, Fetch or Push.
  std::string path_reason = {};  // For people: why `path` is not kLocal. Empty if it is.
};

#undef CAIRN_CLIENT_FIELD
#undef CAIRN_CLIENT_LIST_FIELD

// Calls f(name, total) for each total that is one number, in the order of the tables.
template <typename Visitor>
void ForEachTotal(const ClientStats& stats, Visitor&& f) {
#define CAIRN_CLIENT_VISIT(name, help) f(std::string_view(#name), stats.name);
  CAIRN_CLIENT_COUNTED(CAIRN_CLIENT_VISIT)
  CAIRN_CLIENT_GATHERED(CAIRN_CLIENT_VISIT)
#undef CAIRN_CLIENT_VISIT
}

// Adds the totals. The present state is left alone.
void AddTotals(const ClientStats& more, ClientStats* sum);

}  // namespace cairn::client
