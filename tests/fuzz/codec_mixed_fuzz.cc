#include "tests/fuzz/codec_fuzz.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(codec_mixed)(const uint8_t* data, size_t size) {
  static const cairn::codecs::DecoderFuzz fuzz("mixed", 32, {{64, 2, 1}, {32, 8, 0}});
  fuzz.Run(data, size);
  return 0;
}
