#pragma once
// Protobuf's wire format: tags, and fields appended to a string.
// https://protobuf.dev/programming-guides/encoding/

#include <cstddef>
#include <cstdint>
#include <string>

namespace cairn::frames {

// Tag of a field that is a number (wire type VARINT).
constexpr uint32_t NumberTag(int field) { return static_cast<uint32_t>(field) << 3; }
// Tag of a field that is a fixed64 (wire type I64).
constexpr uint32_t Fixed64Tag(int field) { return static_cast<uint32_t>(field) << 3 | 1; }
// Tag of a field that is text, bytes, a message or packed numbers (wire type LEN).
constexpr uint32_t BytesTag(int field) { return static_cast<uint32_t>(field) << 3 | 2; }

void PutVarint(std::string* out, uint64_t value);
void PutNumber(std::string* out, int field, uint64_t value);
// Leaves out the default, as protobuf does.
void PutNumberUnlessZero(std::string* out, int field, uint64_t value);
void PutFixed64(std::string* out, int field, uint64_t value);
// Tag and length of a field of `size` bytes, which the caller appends.
void PutBytesHeader(std::string* out, int field, size_t size);

}  // namespace cairn::frames
