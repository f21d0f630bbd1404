#pragma once
// The operations on many slices (codec/slice_kernels.h) as a driver of devices offers them: what
// forward_kernels.h of this folder says of streams and of errors holds here, too.
//
// Lists (slices, runs, pieces, index) lie in the host's memory and are copied by the launch. What
// they point to is the device's memory.

#include "cairn/kernels/batch/forward_kernels.h"
#include "cairn/kernels/codec/slice_kernels.h"

namespace cairn::kernels::batch {

// Device::Kernels finds the table by these. The version grows with every change of the table or of
// the arguments.
inline constexpr char kSliceTableName[] = "slices";
inline constexpr uint32_t kSliceTableVersion = 1;

// All entries are set.
struct SliceTable {
  const char* name = nullptr;

  Op<SlicesArgs> encode_slices = nullptr;
  Op<SlicesArgs> decode_slices = nullptr;
  Op<HashRunsArgs> hash_runs = nullptr;
  Op<MovePagesArgs> gather_pages = nullptr;
  Op<MovePagesArgs> scatter_pages = nullptr;

  // Of codec_kernels.h, one head or plane at a time.
  Op<CountNonFiniteArgs> count_non_finite = nullptr;
  Op<LatticeEncodeArgs> lattice_encode = nullptr;
  Op<LatticeDecodeArgs> lattice_decode = nullptr;
};

}  // namespace cairn::kernels::batch
