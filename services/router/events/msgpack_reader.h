#pragma once
// Reads MessagePack values one after the other, without memory of its own.
//
// A library would first make a tree of all values, 24 bytes for each one that a length promises,
// before anything can be checked. Here a length of an array is only a number, and what reads the
// values bounds what it keeps.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "cairn/common/status.h"

namespace cairn::router {

// Not thread-safe. After an error nothing more can be read. Text that is returned points into the
// bytes that were given. All errors are INVALID_ARGUMENT and say what was found and expected.
class MsgpackReader {
 public:
  enum class Kind : uint8_t { kNil, kBool, kInteger, kFloat, kText, kBytes, kArray, kMap, kOther };
  // "nil", "an integer", ...
  static std::string_view Name(Kind kind);

  // An integer as its 64 bits. `negative`: they are those of a signed number below 0.
  struct Integer {
    uint64_t bits = 0;
    bool negative = false;
  };

  explicit MsgpackReader(std::string_view bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  size_t left() const { return rest_.size(); }

  // The kind of the next value. Nothing is taken.
  Result<Kind> Next() const;
  // Takes a nil if one comes next.
  bool TakeNil();
  Result<Integer> TakeInteger();
  // From 0 to `most`.
  Result<uint64_t> TakeNumber(uint64_t most);
  // Integers and floats.
  Status TakeReal();
  // Text, or bytes in its place: older encoders know no difference.
  Result<std::string_view> TakeText();
  // Bytes, or text in their place.
  Result<std::string_view> TakeBytes() { return TakeText(); }
  // The number of values, or of pairs, that follow. At most as many as bytes are left, since each
  // takes one at least.
  Result<uint32_t> TakeArray();
  Result<uint32_t> TakeMap();
  // Takes a value with all that is in it, at most `depth` levels deep.
  Status Skip(int depth = 16);

 private:
  Status Wrong(std::string_view expected) const;
  static Status CutShort();
  // The big-endian number of `size` bytes after the first byte, or nullopt.
  std::optional<uint64_t> NumberAfterFirst(size_t size) const;
  // The length of a text or of bytes, and where they begin. nullopt: cut short.
  std::optional<size_t> TextAt(size_t* length) const;
  Result<uint32_t> TakeCount(Kind kind, std::string_view expected);

  std::string_view rest_;
};

}  // namespace cairn::router
