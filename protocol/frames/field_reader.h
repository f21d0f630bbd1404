#pragma once
// Reads the fields of a received message in place: data stays where gRPC received it.

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn::frames {

// The bytes of one field, in order. They lie in several places if gRPC received them in several
// pieces.
using Chunks = std::vector<std::span<const std::byte>>;

// The most pieces that a reader accepts in one frame. A piece costs two bytes on the wire and a
// hundred bytes in memory. Without a bound a frame of 4 MiB could take 200 MiB.
inline constexpr size_t kMaxPieces = 16384;

// Every read returns false for malformed bytes, for example for a length that goes beyond the
// enclosing message. After that the reader must not be used again. Not thread-safe.
class FieldReader {
 public:
  // The reader does not change `frame`. The frame must outlive the reader and everything that was
  // borrowed from it.
  explicit FieldReader(grpc::ByteBuffer* frame);

  // Reads the message to its end. Calls `field(tag)` for each field. `field` reads or skips the
  // value, and returns false for a malformed one.
  template <typename Field>
  bool Fields(Field field) {
    while (const uint32_t tag = in_.ReadTag()) {
      if (!field(tag)) return false;
    }
    return reader_.status().ok() && in_.ConsumedEntireMessage();
  }

  // The value of the current field.
  bool Read(uint32_t* value) { return in_.ReadVarint32(value); }
  bool Read(uint64_t* value) { return in_.ReadVarint64(value); }
  bool ReadFixed(uint64_t* value) { return in_.ReadLittleEndian64(value); }
  bool Read(std::string* value);
  // Merges the values, as protobuf does when a field comes again.
  bool Read(google::protobuf::MessageLite* message);
  // A message whose fields `field(tag)` reads, as with Fields.
  template <typename Field>
  bool ReadMessage(Field field) {
    return WithinLength([&] { return Fields(field); });
  }
  // Appends packed numbers. Stops when there are more than `max`, so that a small message cannot
  // take much memory. The caller sees this from the count.
  bool ReadPacked(size_t max, std::vector<uint64_t>* numbers);
  // Replaces `data` by views of the bytes.
  bool Borrow(Chunks* data);
  bool Skip(uint32_t tag);

 private:
  // Reads the length of the current field. False: it goes beyond the enclosing message.
  bool ReadLength(int* length);
  // Reads a length, and lets `read` see that number of bytes.
  template <typename Read>
  bool WithinLength(Read read) {
    int length = 0;
    if (!ReadLength(&length)) return false;
    const auto outer = in_.PushLimit(length);
    if (!read()) return false;
    in_.PopLimit(outer);
    return true;
  }

  grpc::ProtoBufferReader reader_;
  google::protobuf::io::CodedInputStream in_;
};

}  // namespace cairn::frames
