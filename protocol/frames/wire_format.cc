#include "protocol/frames/wire_format.h"

namespace cairn::frames {

void PutVarint(std::string* out, uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void PutNumber(std::string* out, int field, uint64_t value) {
  PutVarint(out, NumberTag(field));
  PutVarint(out, value);
}

void PutNumberUnlessZero(std::string* out, int field, uint64_t value) {
  if (value != 0) PutNumber(out, field, value);
}

void PutFixed64(std::string* out, int field, uint64_t value) {
  PutVarint(out, Fixed64Tag(field));
  for (int shift = 0; shift < 64; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

void PutBytesHeader(std::string* out, int field, size_t size) {
  PutVarint(out, BytesTag(field));
  PutVarint(out, size);
}

}  // namespace cairn::frames
