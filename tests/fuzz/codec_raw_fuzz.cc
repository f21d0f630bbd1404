#include "tests/fuzz/codec_fuzz.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(codec_raw)(const uint8_t* data, size_t size) {
  static const cairn::codecs::DecoderFuzz fuzz("raw", 16, {{}});
  fuzz.Run(data, size);
  return 0;
}
