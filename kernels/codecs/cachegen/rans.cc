#include "kernels/codecs/cachegen/rans.h"

#include <cstring>
#include <iterator>
#include <vector>

namespace cairn::codecs::rans {
namespace {

#include "cairn/kernels/codec/cachegen_tables.inc"

constexpr int kTables = static_cast<int>(std::size(kReach));
static_assert(std::size(kClassLimits) == kClasses - 1);

struct Tables {
  EncodeSymbol symbols[kTables][64];
  uint32_t slots[kTables][kSlots];
  Class classes[kClasses];

  Tables() {
    for (int t = 0; t < kTables; ++t) MakeTable(t);
    for (int c = 0; c < kClasses; ++c) {
      // Classes beyond the last table halve their numbers until they fit one of the last two.
      int table = c, shift = 0;
      while (table >= kTables) {
        table -= 2;
        ++shift;
      }
      classes[c] = {shift, kReach[table], symbols[table], slots[table]};
    }
  }

  void MakeTable(int t) {
    uint32_t start = 0;
    const int count = 2 * kReach[t] + 2;
    for (int s = 0; s < count; ++s) {
      const uint32_t frequency = kFrequencies[t][s];
      EncodeSymbol& symbol = symbols[t][s];
      symbol.limit = frequency << (31 - kSlotBits);
      symbol.complement = static_cast<uint16_t>(kSlots - frequency);
      if (frequency < 2) {
        // The reciprocal of 1 does not fit: multiplying by 2^32 - 1 gives x - 1, which bias
        // corrects.
        symbol.reciprocal = ~0u;
        symbol.reciprocal_shift = 0;
        symbol.bias = start + kSlots - 1;
      } else {
        uint32_t shift = 0;
        while (frequency > 1u << shift) ++shift;
        symbol.reciprocal =
            static_cast<uint32_t>(((uint64_t{1} << (shift + 31)) + frequency - 1) / frequency);
        symbol.reciprocal_shift = static_cast<uint16_t>(shift - 1);
        symbol.bias = start;
      }
      const uint32_t escape = s == count - 1 ? 1u << 31 : 0;
      for (uint32_t i = 0; i < frequency; ++i) {
        slots[t][start + i] = frequency | i << 11 | static_cast<uint32_t>(s) << 22 | escape;
      }
      start += frequency;
    }
  }
};

inline uint32_t LoadWord(const std::byte* p) {
  uint16_t word;
  std::memcpy(&word, p, 2);
  return word;
}

inline void Refill(Stream& s) {
  // Without a branch: one word in five is taken, at random.
  const bool low = s.state < kLowest;
  const uint32_t filled = s.state << 16 | LoadWord(s.at);
  s.state = low ? filled : s.state;
  s.at += low ? 2 : 0;
}

inline uint32_t TakeBits(Stream& s, int bits) {
  const uint32_t value = s.state & ((1u << bits) - 1);
  s.state >>= bits;
  Refill(s);
  return value;
}

}  // namespace

const Class* Classes() {
  static const Tables* tables = new Tables;
  return tables->classes;
}

int ClassOf(int64_t squares, int64_t count, int base) {
  int c = base;
  while (c + 1 < base + kWindow && squares * 1024 > kClassLimits[c] * count) ++c;
  return c;
}

void Encoder::PutWord() {
  const auto word = static_cast<uint16_t>(state_);
  at_ -= 2;
  std::memcpy(at_, &word, 2);
  state_ >>= 16;
}

void Encoder::PutBits(uint32_t value, int bits) {
  if (state_ >= 1u << (31 - bits)) PutWord();
  state_ = state_ << bits | value;
}

void Encoder::Put(const Class& c, int32_t n) {
  // The middle of each run of 2^shift numbers is a multiple of 2^shift.
  const int32_t rounded = n + (c.shift > 0 ? 1 << (c.shift - 1) : 0);
  const int32_t high = rounded >> c.shift;
  int32_t symbol = high + c.reach;
  if (high < -c.reach || high > c.reach) {
    symbol = 2 * c.reach + 1;
    const uint32_t zigzag = static_cast<uint32_t>(n) << 1 ^ static_cast<uint32_t>(n >> 31);
    PutBits(zigzag & 0xff, 8);
    PutBits(zigzag >> 8 & 0xff, 8);
    PutBits(zigzag >> 16 & 0xff, 8);
  } else if (c.shift > 0) {
    PutBits(static_cast<uint32_t>(rounded) & ((1u << c.shift) - 1), c.shift);
  }
  const EncodeSymbol& s = c.symbols[symbol];
  if (state_ >= s.limit) PutWord();
  const auto quotient =
      static_cast<uint32_t>(uint64_t{state_} * s.reciprocal >> 32) >> s.reciprocal_shift;
  state_ += s.bias + quotient * s.complement;
}

std::byte* Encoder::Finish() {
  at_ -= 4;
  std::memcpy(at_, &state_, 4);
  return at_;
}

Stream Stream::Open(const std::byte* begin, const std::byte* end) {
  Stream s;
  std::memcpy(&s.state, begin, 4);
  s.at = begin + 4;
  s.end = end;
  return s;
}

template <int kStreams>
void Decode(Stream* streams, const Class* const* classes, const int32_t* bases, int64_t count,
            uint16_t* const* out, int64_t stride) {
  Stream s[kStreams];
  const uint32_t* slots[kStreams];
  uint16_t* to[kStreams];
  int32_t base[kStreams];
  int shifts = 0;
  for (int j = 0; j < kStreams; ++j) {
    s[j] = streams[j];
    slots[j] = classes[j]->slots;
    to[j] = out[j];
    base[j] = bases[j] + 32768 - classes[j]->reach;
    shifts |= classes[j]->shift;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint32_t entry[kStreams];
    uint32_t escape = 0;
#pragma GCC unroll 4
    for (int j = 0; j < kStreams; ++j) {
      entry[j] = slots[j][s[j].state & (kSlots - 1)];
      s[j].state =
          (entry[j] & (kSlots - 1)) * (s[j].state >> kSlotBits) + (entry[j] >> 11 & (kSlots - 1));
      Refill(s[j]);
      escape |= entry[j];
    }
    if (shifts == 0 && escape >> 31 == 0) [[likely]] {
#pragma GCC unroll 4
      for (int j = 0; j < kStreams; ++j) {
        to[j][i * stride] = static_cast<uint16_t>(base[j] + static_cast<int32_t>(entry[j] >> 22));
      }
      continue;
    }
    for (int j = 0; j < kStreams; ++j) {
      const Class& c = *classes[j];
      int32_t n = static_cast<int32_t>(entry[j] >> 22 & 0xff) - c.reach;
      if (entry[j] >> 31 != 0) {
        uint32_t zigzag = TakeBits(s[j], 8) << 16;
        zigzag |= TakeBits(s[j], 8) << 8;
        zigzag |= TakeBits(s[j], 8);
        n = static_cast<int32_t>(zigzag >> 1 ^ (0u - (zigzag & 1)));
      } else if (c.shift > 0) {
        n = n * (1 << c.shift) + static_cast<int32_t>(TakeBits(s[j], c.shift)) -
            (1 << (c.shift - 1));
      }
      to[j][i * stride] = static_cast<uint16_t>(bases[j] + 32768 + n);
    }
  }
  for (int j = 0; j < kStreams; ++j) streams[j] = s[j];
}

template void Decode<2>(Stream*, const Class* const*, const int32_t*, int64_t, uint16_t* const*,
                        int64_t);
template void Decode<4>(Stream*, const Class* const*, const int32_t*, int64_t, uint16_t* const*,
                        int64_t);

}  // namespace cairn::codecs::rans
