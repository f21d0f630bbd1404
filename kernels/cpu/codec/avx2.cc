#define CAIRN_KERNEL_NS codec_avx2
#include "kernels/cpu/codec/codec.inc.h"

namespace cairn::kernels {

CodecKernels MakeAvx2CodecKernels() { return codec_avx2::Table("avx2"); }

}  // namespace cairn::kernels
