#pragma once
// The meaning of the numbers that entries of tables of kernels return (cairn/kernels/batch).

#include "cairn/common/status.h"
#include "common/device/device.h"

namespace cairn::device {

// The status of a launch of `what` on `device` that returned `error`. UNAVAILABLE: the device is
// lost. INTERNAL: the launch failed.
inline Status Launched(const char* what, int error, const Device& device) {
  if (error == 0) return OkStatus();
  if (device.lost()) return device.LossStatus();
  return Errorf(StatusCode::kInternal, "{}: the launch failed with error {}", what, error);
}

}  // namespace cairn::device
