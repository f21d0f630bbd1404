#pragma once
// The entropy coder of cachegen (kernels/codecs/cachegen/rans.h): rANS with fixed tables. A stream
// is one lane's, since each of its steps needs the one before. The tables lie in shared memory.

#include <iterator>

#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda::rans {

// The arrays of the format are the host's.
namespace format {
#include "cairn/kernels/codec/cachegen_tables.inc"
}  // namespace format

constexpr int kTables = static_cast<int>(std::size(format::kReach));
constexpr int kSymbols = 64;  // The most symbols of a table.
constexpr int kLimits = static_cast<int>(std::size(format::kClassLimits));
constexpr int kWindow = 16;  // Classes that a block can name.
constexpr int kSlotBits = 11;
constexpr uint32_t kSlots = 1u << kSlotBits;
constexpr uint32_t kLowest = 1u << 15;
constexpr int kMostBytes = 8;  // The most bytes of one number.

struct Constants {
  int64_t limits[kLimits] = {};
  uint16_t frequencies[kTables][kSymbols] = {};
  uint8_t reach[kTables] = {};
};
constexpr Constants ConstantsOfFormat() {
  Constants constants;
  for (int c = 0; c < kLimits; ++c) constants.limits[c] = format::kClassLimits[c];
  for (int t = 0; t < kTables; ++t) {
    constants.reach[t] = format::kReach[t];
    for (int s = 0; s < kSymbols; ++s) constants.frequencies[t][s] = format::kFrequencies[t][s];
  }
  return constants;
}
__device__ constexpr Constants kConstants = ConstantsOfFormat();

// The class for `count` numbers with this sum of squares, of the window that begins at `base`.
CAIRN_DEVICE int ClassOf(int64_t squares, int64_t count, int base) {
  int c = base;
  while (c + 1 < base + kWindow && squares * 1024 > kConstants.limits[c] * count) ++c;
  return c;
}

// How the numbers of one class are coded: `shift` low bits as they are, what is left by a table.
struct Class {
  int table = 0;
  int shift = 0;
  int reach = 0;  // Symbols -reach to reach, then the escape.
};
CAIRN_DEVICE Class ClassAt(int c) {
  // Classes beyond the last table halve their numbers until they fit one of the last two.
  Class of;
  of.shift = c < kTables ? 0 : (c - kTables) / 2 + 1;
  of.table = c - 2 * of.shift;
  of.reach = kConstants.reach[of.table];
  return of;
}

// In shared memory. All threads of a block make one and call Build, behind which a barrier stands.
template <bool kDecode>
class Tables {
 public:
  static constexpr size_t kSharedBytes =
      kTables * kSymbols * sizeof(uint32_t) + (kDecode ? kTables * kSlots : 0);

  CAIRN_DEVICE explicit Tables(SharedArrays* shared)
      : entries_(shared->Take<uint32_t>(kTables * kSymbols)),
        symbols_(kDecode ? shared->Take<uint8_t>(kTables * kSlots) : nullptr) {}

  CAIRN_DEVICE void Build() const {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kTables) {
      uint32_t start = 0;
      for (int s = 0; s < kSymbols; ++s) {
        const uint32_t frequency = kConstants.frequencies[thread][s];
        entries_[thread * kSymbols + s] = frequency | start << kSlotBits;
        start += frequency;
      }
    }
    __syncthreads();
    if (!kDecode) return;
    // A symbol is a warp's.
    for (int i = thread / kWarp; i < kTables * kSymbols;
         i += static_cast<int>(blockDim.x) / kWarp) {
      uint8_t* const slots =
          symbols_ + i / kSymbols * static_cast<int>(kSlots) + Start(entries_[i]);
      for (uint32_t k = threadIdx.x % kWarp; k < Frequency(entries_[i]); k += kWarp) {
        slots[k] = static_cast<uint8_t>(i % kSymbols);
      }
    }
    __syncthreads();
  }

  CAIRN_DEVICE static uint32_t Frequency(uint32_t entry) { return entry & (kSlots - 1); }
  CAIRN_DEVICE static uint32_t Start(uint32_t entry) { return entry >> kSlotBits; }

  CAIRN_DEVICE uint32_t EntryOf(const Class& c, int symbol) const {
    return entries_[c.table * kSymbols + symbol];
  }
  CAIRN_DEVICE int SymbolAt(const Class& c, uint32_t slot) const {
    return symbols_[c.table * static_cast<int>(kSlots) + static_cast<int>(slot)];
  }

 private:
  uint32_t* const entries_;  // Frequency, and the first slot.
  uint8_t* const symbols_;
};

// One stream under decoding, on one thread. Behind its end it reads zeros, as the CPUs do.
class Reader {
 public:
  // REQUIRES: bytes >= 4.
  CAIRN_DEVICE Reader(const uint8_t* begin, uint32_t bytes)
      : begin_(begin), bytes_(bytes), state_(Load2(begin) | Load2(begin + 2) << 16) {
    Fetch();
  }

  // One number, without the anchor.
  CAIRN_DEVICE int Number(const Tables<true>& tables, const Class& c) {
    const uint32_t slot = state_ & (kSlots - 1);
    const int symbol = tables.SymbolAt(c, slot);
    const uint32_t entry = tables.EntryOf(c, symbol);
    state_ =
        Tables<true>::Frequency(entry) * (state_ >> kSlotBits) + slot - Tables<true>::Start(entry);
    Refill();
    int n = symbol - c.reach;
    if (n > c.reach) {
      uint32_t zigzag = TakeBits(8) << 16;
      zigzag |= TakeBits(8) << 8;
      zigzag |= TakeBits(8);
      n = static_cast<int>(zigzag >> 1 ^ (0u - (zigzag & 1)));
    } else if (c.shift > 0) {
      n = n * (1 << c.shift) + static_cast<int>(TakeBits(c.shift)) - (1 << (c.shift - 1));
    }
    return n;
  }

  // All read, and the state that the encoder began with.
  CAIRN_DEVICE bool AtEnd() const { return at_ == bytes_ && state_ == kLowest; }

 private:
  // The next word is there before it is known whether it is needed.
  CAIRN_DEVICE void Fetch() { word_ = at_ + 2 <= bytes_ ? Load2(begin_ + at_) : 0; }
  CAIRN_DEVICE void Refill() {
    if (state_ >= kLowest) return;
    state_ = state_ << 16 | word_;
    at_ += 2;
    Fetch();
  }
  CAIRN_DEVICE uint32_t TakeBits(int bits) {
    const uint32_t value = state_ & ((1u << bits) - 1);
    state_ >>= bits;
    Refill();
    return value;
  }

  const uint8_t* begin_;
  uint32_t bytes_;
  uint32_t at_ = 4;
  uint32_t state_;
  uint32_t word_ = 0;
};

// Writes a stream backwards, on one thread: put numbers in reverse order. `end`, where the stream
// ends, is aligned to 2 bytes.
class Writer {
 public:
  CAIRN_DEVICE explicit Writer(uint8_t* end) : end_(end), at_(end) {}

  CAIRN_DEVICE void Put(const Tables<false>& tables, const Class& c, int n) {
    // The middle of each run of 2^shift numbers is a multiple of 2^shift.
    const int rounded = n + (c.shift > 0 ? 1 << (c.shift - 1) : 0);
    const int high = rounded >> c.shift;
    int symbol = high + c.reach;
    if (high < -c.reach || high > c.reach) {
      symbol = 2 * c.reach + 1;
      const uint32_t zigzag = static_cast<uint32_t>(n) << 1 ^ static_cast<uint32_t>(n >> 31);
      PutBits(zigzag & 0xff, 8);
      PutBits(zigzag >> 8 & 0xff, 8);
      PutBits(zigzag >> 16 & 0xff, 8);
    } else if (c.shift > 0) {
      PutBits(static_cast<uint32_t>(rounded) & ((1u << c.shift) - 1), c.shift);
    }
    const uint32_t entry = tables.EntryOf(c, symbol);
    const uint32_t frequency = Tables<false>::Frequency(entry);
    if (state_ >= frequency << (31 - kSlotBits)) PutWord();
    const uint32_t quotient = state_ / frequency;
    state_ += Tables<false>::Start(entry) + quotient * (kSlots - frequency);
  }

  // The stream's length; it ends where the writer's end is.
  CAIRN_DEVICE uint32_t Finish() {
    at_ -= 4;
    Store2(at_, state_ & 0xffff);
    Store2(at_ + 2, state_ >> 16);
    return static_cast<uint32_t>(end_ - at_);
  }

 private:
  CAIRN_DEVICE void PutBits(uint32_t value, int bits) {
    if (state_ >= 1u << (31 - bits)) PutWord();
    state_ = state_ << bits | value;
  }
  CAIRN_DEVICE void PutWord() {
    at_ -= 2;
    Store2(at_, state_ & 0xffff);
    state_ >>= 16;
  }

  uint8_t* const end_;
  uint8_t* at_;
  uint32_t state_ = kLowest;
};

}  // namespace cairn::kernels::cuda::rans
