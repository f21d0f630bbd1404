#include "common/device/cuda/errors.h"

#include <cuda_runtime_api.h>

#include <cstdio>

namespace cairn::device::cuda {

Code CodeOf(int error) {
  switch (error) {
    case cudaSuccess:
      return Code::kOk;
    case cudaErrorNotReady:
      return Code::kNotReady;
    case cudaErrorInitializationError:
    case cudaErrorNoDevice:
    case cudaErrorSystemNotReady:
    case cudaErrorStubLibrary:
      return Code::kNoDriver;
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return Code::kOldDriver;
    case cudaErrorMemoryAllocation:
      return Code::kOutOfMemory;
    case cudaErrorNotSupported:
      return Code::kNotSupported;
    // The system refuses to pin more, or a container does not allow it.
    case cudaErrorNotPermitted:
    case cudaErrorOperatingSystem:
      return Code::kRefused;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
      return Code::kInvalid;
    case cudaErrorInvalidDevice:
      return Code::kNotFound;
    // After these the process cannot use the device any more.
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorContained:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return Code::kLost;
    default:
      return Code::kOther;
  }
}

Code Say(int error, Failure* failure) {
  if (error == cudaSuccess) return Code::kOk;
  // An error that does not last would be returned by the next call, too.
  (void)cudaGetLastError();
  const auto runtime = static_cast<cudaError_t>(error);
  std::snprintf(failure->text, sizeof(failure->text), "%s (%s, %d)", cudaGetErrorString(runtime),
                cudaGetErrorName(runtime), error);
  return CodeOf(error);
}

Code Say(Code code, const char* text, Failure* failure) {
  std::snprintf(failure->text, sizeof(failure->text), "%s", text);
  return code;
}

}  // namespace cairn::device::cuda
