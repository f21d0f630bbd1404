#define CAIRN_KERNEL_NS codec_avx512
#include "kernels/cpu/codec/codec.inc.h"

namespace cairn::kernels {

CodecKernels MakeAvx512CodecKernels() { return codec_avx512::Table("avx512"); }

}  // namespace cairn::kernels
