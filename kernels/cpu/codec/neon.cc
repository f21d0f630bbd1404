#define CAIRN_KERNEL_NS codec_neon
#define CAIRN_NEON
#include "kernels/cpu/codec/codec.inc.h"

namespace cairn::kernels {

CodecKernels MakeNeonCodecKernels() { return codec_neon::Table("neon"); }

}  // namespace cairn::kernels
