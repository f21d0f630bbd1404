#include "tests/fuzz/codec_fuzz.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(codec_cachegen)(const uint8_t* data, size_t size) {
  static const cairn::codecs::DecoderFuzz fuzz("cachegen", 16,
                                               {{12, 24, 1}, {4, 64, 0}, {1, 3, 1}});
  fuzz.Run(data, size);
  return 0;
}
