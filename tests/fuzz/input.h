#pragma once
// Code that the targets share: an input as values, and the end of the program where a promise is
// broken.
//
// A target is LLVMFuzzerTestOneInput of one parser (CAIRN_FUZZ_ENTRY). It copies what the parser
// reads into memory of exactly that size, for the sanitizer's red zones, repairs checksums where
// the input says so (else nothing behind them is ever reached), and compares what was accepted with
// a second way to say the same: another implementation, or the writer of the format.
//
// Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/hash.h"

// How a target begins. libFuzzer wants one name, one program of all targets wants one for each.
#ifdef CAIRN_FUZZ_REPLAY
#define CAIRN_FUZZ_ENTRY(name) extern "C" int cairn_fuzz_##name
#else
#define CAIRN_FUZZ_ENTRY(name) extern "C" int LLVMFuzzerTestOneInput
#endif

namespace cairn::fuzz {

// Ends the program where `condition` does not hold, in every kind of build.
inline void Expect(bool condition) {
  if (!condition) std::abort();
}

// The value of a Result that must be one.
template <typename R>
auto Get(R result) {
  Expect(result.ok());
  return *std::move(result);
}

inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Takes values off the front of an input. After its end every number is 0.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(Text(data, size)) {}

  bool empty() const { return rest_.empty(); }
  uint8_t U8() { return Number<uint8_t>(); }
  uint16_t U16() { return Number<uint16_t>(); }
  uint32_t U32() { return Number<uint32_t>(); }
  // A number below `n`, from one byte. REQUIRES: 1 <= n <= 256.
  uint32_t Below(uint32_t n) { return U8() % n; }
  // At most `n` bytes.
  std::string_view Bytes(size_t n) {
    const std::string_view bytes = rest_.substr(0, n);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  std::string_view Rest() { return Bytes(rest_.size()); }

 private:
  template <typename T>
  T Number() {
    T value = 0;
    Bytes(sizeof(T)).copy(reinterpret_cast<char*>(&value), sizeof(T));
    return value;
  }

  std::string_view rest_;
};

// A copy in memory of exactly its size.
inline std::vector<std::byte> Copy(std::string_view bytes) {
  const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
  return {from, from + bytes.size()};
}

// Makes the last eight bytes the hash of those before them, as in the records of the disk tier.
inline void RepairHash(std::vector<std::byte>* record) {
  if (record->size() < sizeof(uint64_t)) return;
  const auto body = std::span(*record).first(record->size() - sizeof(uint64_t));
  const uint64_t hash = Xxh3(body);
  std::memcpy(record->data() + body.size(), &hash, sizeof(hash));
}

}  // namespace cairn::fuzz
