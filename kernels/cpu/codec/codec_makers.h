#pragma once
// One maker per translation unit of this folder. Each architecture compiles its own of them. Call
// only where Supports(isa).

#include "cairn/kernels/codec/codec_kernels.h"

namespace cairn::kernels {

CodecKernels MakePortableCodecKernels();
CodecKernels MakeNeonCodecKernels();
CodecKernels MakeAvx2CodecKernels();
CodecKernels MakeAvx512CodecKernels();

}  // namespace cairn::kernels
