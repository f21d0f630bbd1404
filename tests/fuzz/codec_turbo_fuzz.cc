#include "tests/fuzz/codec_fuzz.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(codec_turbo)(const uint8_t* data, size_t size) {
  static const cairn::codecs::DecoderFuzz fuzz("turbo", 64, {{4, 4, 1}, {3, 3, 0}, {2, 2, 0}});
  fuzz.Run(data, size);
  return 0;
}
