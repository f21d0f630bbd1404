#pragma once
// The trace id that a caller may give to its call.

#include <string_view>

namespace cairn::rpc {

// The request metadata with the trace id.
inline constexpr char kTraceMetadata[] = "x-cairn-trace";
// 1 to 64 characters of [A-Za-z0-9-].
bool IsTrace(std::string_view trace);

}  // namespace cairn::rpc
