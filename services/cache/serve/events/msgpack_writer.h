#pragma once
// Writes MessagePack, each value in the shortest form that it has.

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/common/hash.h"

namespace cairn::cache {

// Not thread-safe. After Array(n) come n values, after Map(n) n pairs of a text and a value.
class MsgpackWriter {
 public:
  void Nil() { Byte(0xc0); }
  void Unsigned(uint64_t value) {
    if (value < 0x80) return Byte(value);
    if (value <= 0xff) return Big(0xcc, value, 1);
    if (value <= 0xffff) return Big(0xcd, value, 2);
    if (value <= 0xffffffff) return Big(0xce, value, 4);
    Big(0xcf, value, 8);
  }
  void Signed(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    if (value >= 0) return Unsigned(bits);
    if (value >= -0x20) return Byte(bits);
    if (value >= INT8_MIN) return Big(0xd0, bits, 1);
    if (value >= INT16_MIN) return Big(0xd1, bits, 2);
    if (value >= INT32_MIN) return Big(0xd2, bits, 4);
    Big(0xd3, bits, 8);
  }
  void Real(double value) { Big(0xcb, std::bit_cast<uint64_t>(value), 8); }
  // At most 255 bytes.
  void Text(std::string_view text) {
    if (text.size() < 0x20) {
      Byte(0xa0 | text.size());
    } else {
      Big(0xd9, text.size(), 1);
    }
    out_ += text;
  }
  void Bytes(const Digest& digest) {
    Big(0xc4, digest.bytes.size(), 1);
    out_ += digest.View();
  }
  void Array(size_t values) { Head(values, 0x90, 0xdc); }
  void Map(size_t pairs) { Head(pairs, 0x80, 0xde); }

  std::string Take() { return std::exchange(out_, {}); }

 private:
  void Head(size_t count, uint64_t few, uint64_t many) {
    if (count < 0x10) return Byte(few | count);
    if (count <= 0xffff) return Big(many, count, 2);
    Big(many + 1, count, 4);
  }
  void Byte(uint64_t value) { out_ += static_cast<char>(value & 0xff); }
  // A byte, and the last `bytes` of the value, the highest first.
  void Big(uint64_t first, uint64_t value, int bytes) {
    Byte(first);
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) Byte(value >> shift);
  }

  std::string out_;
};

}  // namespace cairn::cache
