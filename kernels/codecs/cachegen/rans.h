#pragma once
// rANS with fixed tables (Duda, 2013, "Asymmetric numeral systems"), 32-bit states in
// [2^15, 2^31), words of 16 bits, 2048 slots. A stream is its final state (u32) and then words in
// the order of decoding.
//
// All whole numbers: the same bytes on every machine.

#include <cstddef>
#include <cstdint>

namespace cairn::codecs::rans {

inline constexpr int kSlotBits = 11;
inline constexpr uint32_t kSlots = 1u << kSlotBits;
inline constexpr uint32_t kLowest = 1u << 15;
inline constexpr int kClasses = 20;
// A block names classes by 4 bits: a window of them.
inline constexpr int kWindow = 16;
// Bytes that one number takes at most: four words, for an escape.
inline constexpr int64_t kMostBytes = 8;

// How the numbers of one class are coded. Numbers are split: `shift` low bits are stored as they
// are, what is left has a table.
struct EncodeSymbol {
  uint32_t limit;  // States from here on first give a word away.
  // The reciprocal of the frequency: division by multiplication, exact for states < 2^31.
  uint32_t reciprocal;
  uint32_t bias;
  uint16_t complement;  // kSlots - frequency.
  uint16_t reciprocal_shift;
};

struct Class {
  int shift = 0;
  int32_t reach = 0;                      // Symbols -reach to reach, then the escape.
  const EncodeSymbol* symbols = nullptr;  // [2 * reach + 2]
  // [kSlots]: frequency in bits 0 to 10, slot minus the symbol's first slot in 11 to 21, symbol in
  // 22 to 29, 1 in 31 for the escape.
  const uint32_t* slots = nullptr;
};
// [kClasses]. Made once; thread-safe.
const Class* Classes();

// The class for `count` numbers with this sum of squares, of the window that begins at `base`.
int ClassOf(int64_t squares, int64_t count, int base);

// Writes a stream backwards, ending at `end`: put numbers in reverse order.
class Encoder {
 public:
  explicit Encoder(std::byte* end) : at_(end) {}
  // |n| <= 65535.
  void Put(const Class& c, int32_t n);
  // The stream's first byte. Nothing may be put after it.
  std::byte* Finish();

 private:
  void PutBits(uint32_t value, int bits);
  void PutWord();

  std::byte* at_;
  uint32_t state_ = kLowest;
};

// One stream under decoding. At least 2 bytes behind its end must be readable, and
// count * kMostBytes more for each Decode after that.
struct Stream {
  const std::byte* at = nullptr;
  const std::byte* end = nullptr;
  uint32_t state = 0;

  // REQUIRES: at least 4 bytes.
  static Stream Open(const std::byte* begin, const std::byte* end);
  // All read, and the state that the encoder began with: what nearly no corrupt stream reaches.
  bool AtEnd() const { return at == end && state == kLowest; }
};

// Decodes `count` numbers of each of kStreams streams in lockstep, so that their chains of
// dependent steps overlap: number i of stream s, plus bases[s], goes to out[s][i * stride] with
// 32768 added, modulo 65536. Reads at most count * kMostBytes bytes of each.
template <int kStreams>
void Decode(Stream* streams, const Class* const* classes, const int32_t* bases, int64_t count,
            uint16_t* const* out, int64_t stride);

extern template void Decode<2>(Stream*, const Class* const*, const int32_t*, int64_t,
                               uint16_t* const*, int64_t);
extern template void Decode<4>(Stream*, const Class* const*, const int32_t*, int64_t,
                               uint16_t* const*, int64_t);

}  // namespace cairn::codecs::rans
