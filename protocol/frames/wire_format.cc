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

void PutBytesHeader(std::string* out, int field, size_t size) {
  PutVarint(out, BytesTag(field));
  PutVarint(out, size);
}

}  // namespace cairn::frames
