#pragma once
// The operations of codec/codec_kernels.h that are not operations on slices (slice_table.h), as a
// table that a library of devices carries. Its rules for streams and errors hold here, too.

#include "cairn/kernels/batch/forward_kernels.h"
#include "cairn/kernels/codec/codec_kernels.h"

namespace cairn::kernels::batch {

// The name of this table for a driver of devices (common/device: Device::Kernels). The version
// grows with every change of the table or of the arguments.
inline constexpr char kHeadTableName[] = "codec-heads";
inline constexpr uint32_t kHeadTableVersion = 1;

// All entries are set.
struct HeadTable {
  const char* name = nullptr;

  Op<CountNonFiniteArgs> count_non_finite = nullptr;
  Op<LatticeEncodeArgs> lattice_encode = nullptr;
  Op<LatticeDecodeArgs> lattice_decode = nullptr;
};

}  // namespace cairn::kernels::batch
