#include "protocol/frames/field_reader.h"

#include <google/protobuf/wire_format_lite.h>

#include <algorithm>

namespace cairn::frames {

FieldReader::FieldReader(grpc::ByteBuffer* frame) : reader_(frame), in_(&reader_) {
  // With a limit at the end of the bytes, BytesUntilLimit is never negative, and a length beyond
  // them is seen before anything is read.
  in_.PushLimit(static_cast<int>(frame->Length()));
}

bool FieldReader::ReadLength(int* length) {
  return in_.ReadVarintSizeAsInt(length) && *length <= in_.BytesUntilLimit();
}

bool FieldReader::Read(std::string* value) {
  int length = 0;
  return ReadLength(&length) && in_.ReadString(value, length);
}

bool FieldReader::Read(google::protobuf::MessageLite* message) {
  return WithinLength(
      [&] { return message->MergeFromCodedStream(&in_) && in_.ConsumedEntireMessage(); });
}

bool FieldReader::ReadPacked(size_t max, std::vector<uint64_t>* numbers) {
  return WithinLength([&] {
    while (in_.BytesUntilLimit() > 0 && numbers->size() <= max) {
      if (!in_.ReadVarint64(&numbers->emplace_back())) return false;
    }
    return true;
  });
}

bool FieldReader::Borrow(Chunks* data) {
  data->clear();
  int left = 0;
  if (!ReadLength(&left)) return false;
  while (left > 0) {
    const void* bytes = nullptr;
    int size = 0;
    if (!in_.GetDirectBufferPointer(&bytes, &size) || size <= 0) return false;
    size = std::min(size, left);
    data->emplace_back(static_cast<const std::byte*>(bytes), static_cast<size_t>(size));
    if (!in_.Skip(size)) return false;
    left -= size;
  }
  return true;
}

bool FieldReader::Skip(uint32_t tag) {
  return google::protobuf::internal::WireFormatLite::SkipField(&in_, tag);
}

}  // namespace cairn::frames
