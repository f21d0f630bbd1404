#include "tests/fuzz/codec_fuzz.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(codec_int8)(const uint8_t* data, size_t size) {
  static const cairn::codecs::DecoderFuzz fuzz("int8", 16, {{64, 0}, {16, 1}});
  fuzz.Run(data, size);
  return 0;
}
