#define CAIRN_KERNEL_NS codec_portable
#include "kernels/cpu/codec/codec.inc.h"

namespace cairn::kernels {

CodecKernels MakePortableCodecKernels() { return codec_portable::Table("portable"); }

}  // namespace cairn::kernels
