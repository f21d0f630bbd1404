#pragma once
// The operations of codec/slice_kernels.h as a table that a library of devices carries.
//
// An entry launches its operation on a stream (of CUDA: a cudaStream_t) and returns 0, or the error
// number of the launch. Later errors are reported by the stream. Lists lie in the host's memory
// and are copied by the launch; what they point to is the device's memory. Entries may be called by
// any thread.

#include "cairn/kernels/codec/slice_kernels.h"

namespace cairn::kernels::batch {

// The name of this table for a driver of devices (common/device: Device::Kernels). The version
// grows with every change of the table or of the arguments.
inline constexpr char kSliceTableName[] = "slices";
inline constexpr uint32_t kSliceTableVersion = 1;

template <typename Args>
using LaunchOfSlices = int (*)(void* stream, const Args&);

// All entries are set.
struct SliceTable {
  const char* name = nullptr;

  LaunchOfSlices<SlicesArgs> encode_slices = nullptr;
  LaunchOfSlices<SlicesArgs> decode_slices = nullptr;
  LaunchOfSlices<HashRunsArgs> hash_runs = nullptr;
  LaunchOfSlices<MovePagesArgs> gather_pages = nullptr;
  LaunchOfSlices<MovePagesArgs> scatter_pages = nullptr;
};

}  // namespace cairn::kernels::batch
