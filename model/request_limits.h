#pragma once
// Limits for a request to generate, wherever it comes in: at a worker or at a router.

#include <cstddef>
#include <cstdint>

namespace cairn::model {

inline constexpr size_t kMaxMessages = 1024;
inline constexpr double kMaxTemperature = 10;
inline constexpr size_t kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 256;
inline constexpr size_t kMaxTenantBytes = 128;
inline constexpr int32_t kLeastPriority = -10;
inline constexpr int32_t kGreatestPriority = 10;

}  // namespace cairn::model
