#include "tests/fuzz/codec_fuzz.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(codec_fp8)(const uint8_t* data, size_t size) {
  static const cairn::codecs::DecoderFuzz fuzz("fp8", 16, {{0}, {1}});
  fuzz.Run(data, size);
  return 0;
}
