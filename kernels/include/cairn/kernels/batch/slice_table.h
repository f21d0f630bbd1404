#pragma once
// The operations of codec/slice_kernels.h as a table that a library of devices carries.
//
// An entry launches its operation on a stream (of CUDA: a cudaStream_t) and returns 0, or the error
// number of the launch. What goes wrong later, the stream reports. Lists lie in the host's memory
// and are copied by the launch; what they point to is the device's memory. Entries may be called by
// any thread.

#include "cairn/kernels/codec/slice_kernels.h"

namespace cairn::kernels::batch {

// What a driver of devices calls this table (common/device: Device::Kernels). The version grows
// with every change of the table or of the arguments.
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
