#pragma once
// The fields of a received message, in place: data stays where gRPC received it.

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

// Bytes of one field, in order. They lie in several places where gRPC received them so.
using Chunks = std::vector<std::span<const std::byte>>;

// Pieces that a reader takes from one frame. A piece costs two bytes on the wire and a hundred in
// memory: without a bound a frame of 4 MiB would take 200.
inline constexpr size_t kMaxPieces = 16384;

// Every read returns false for malformed bytes, among them lengths beyond the enclosing message.
// The reader is of no use after that. Not thread-safe.
class FieldReader {
 public:
  // The reader leaves `frame` as it is. The frame must outlive the reader, and everything that was
  // borrowed from it.
  explicit FieldReader(grpc::ByteBuffer* frame);

  // Reads the message to its end: calls `field(tag)` for each of its fields, which reads the value
  // or skips it, and returns false for a malformed one.
  template <typename Field>
  bool Fields(Field field) {
    while (const uint32_t tag = in_.ReadTag()) {
      if (!field(tag)) return false;
    }
    return reader_.status().ok() && in_.ConsumedEntireMessage();
  }

  // The value of the field at hand.
  bool Read(uint32_t* value) { return in_.ReadVarint32(value); }
  bool Read(uint64_t* value) { return in_.ReadVarint64(value); }
  bool Read(std::string* value);
  // Merges, as protobuf does when a field comes again.
  bool Read(google::protobuf::MessageLite* message);
  // A message whose fields `field(tag)` reads, as with Fields.
  template <typename Field>
  bool ReadMessage(Field field) {
    return WithinLength([&] { return Fields(field); });
  }
  // Appends packed numbers. Stops when there are more than `max`, so that a small message does not
  // take much memory; the caller tells by their count.
  bool ReadPacked(size_t max, std::vector<uint64_t>* numbers);
  // Replaces `data` by views of the bytes.
  bool Borrow(Chunks* data);
  bool Skip(uint32_t tag);

 private:
  // The length of the field at hand. False if it goes beyond the enclosing message.
  bool ReadLength(int* length);
  // Reads a length, and lets `read` see so many bytes.
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
