#include "tests/fuzz/codec_fuzz.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(codec_int4)(const uint8_t* data, size_t size) {
  static const cairn::codecs::DecoderFuzz fuzz("int4", 32, {{64, 1}, {32, 0}});
  fuzz.Run(data, size);
  return 0;
}
