#include "common/rpc/frame_bounds.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

namespace cairn::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

using MostElements = std::unordered_map<const FieldDescriptor*, uint64_t>;

// Limit for messages in messages. Ours are six deep.
constexpr size_t kMaxDepth = 32;
// The memory of an element of a list in addition to its own bytes, and that of an unknown field.
constexpr uint64_t kPerElement = 16;
constexpr uint64_t kPerUnknown = 24;
// The node of a map, with its key and the place of its value.
constexpr uint64_t kPerMapEntry = 96;
// Shorter text lies in its object.
constexpr uint64_t kShortText = 15;

enum class Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

Wire WireOf(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
      return Wire::kFixed64;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
      return Wire::kFixed32;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE:
    case FieldDescriptor::TYPE_GROUP:
      return Wire::kBytes;
    default:
      return Wire::kVarint;
  }
}

uint64_t NumberBytes(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return 1;
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_ENUM:
      return 4;
    default:
      return 8;
  }
}

// One reading of a frame. After an error it must not be used again.
class FrameWalk {
 public:
  FrameWalk(const MostElements& most, grpc::ByteBuffer* frame)
      : most_(most), reader_(frame), in_(&reader_) {
    // Lengths beyond the frame are seen before anything is read.
    in_.PushLimit(static_cast<int>(frame->Length()));
  }

  Result<uint64_t> Run(const google::protobuf::Message& type) {
    if (!reader_.status().ok()) return Malformed(*type.GetDescriptor());
    bytes_ = type.SpaceUsedLong();
    CAIRN_RETURN_IF_ERROR(ReadMessage(*type.GetDescriptor()));
    return bytes_;
  }

 private:
  static Status Malformed(const Descriptor& type) {
    return InvalidArgument("request: expected a message of type {}", type.full_name());
  }
  Status ReadMessage(const Descriptor& type) {
    if (path_.size() > kMaxDepth) return Malformed(type);
    while (const uint32_t tag = in_.ReadTag()) {
      const FieldDescriptor* const field = type.FindFieldByNumber(static_cast<int>(tag >> 3));
      CAIRN_RETURN_IF_ERROR(ReadField(type, field, static_cast<Wire>(tag & 7)));
    }
    if (!in_.ConsumedEntireMessage()) return Malformed(type);
    return OkStatus();
  }
  Status ReadField(const Descriptor& type, const FieldDescriptor* field, Wire wire) {
    const Wire own = field == nullptr ? Wire::kBytes : WireOf(*field);
    const bool is_number = own != Wire::kBytes;
    if (wire == Wire::kBytes) {
      int length = 0;
      if (!in_.ReadVarintSizeAsInt(&length) || length > in_.BytesUntilLimit()) {
        return Malformed(type);
      }
      if (field == nullptr || (is_number && !field->is_packable())) return Unknown(type, length);
      if (is_number) return ReadPacked(*field, own, length);
      return field->message_type() == nullptr ? ReadText(*field, length)
                                              : ReadInner(*field, length);
    }
    if (!SkipNumber(wire)) return Malformed(type);
    if (own != wire) return Unknown(type, 0);
    if (!field->is_repeated()) return OkStatus();
    bytes_ += 2 * NumberBytes(*field);
    return Count(*field, 1);
  }
  // False also for groups, which no message of ours has.
  bool SkipNumber(Wire wire) {
    uint64_t number = 0;
    if (wire == Wire::kVarint) return in_.ReadVarint64(&number);
    return (wire == Wire::kFixed64 && in_.Skip(8)) || (wire == Wire::kFixed32 && in_.Skip(4));
  }
  Status ReadPacked(const FieldDescriptor& field, Wire wire, int length) {
    uint64_t count = 0;
    if (wire == Wire::kVarint) {
      for (int left = length; left > 0;) {
        const void* data = nullptr;
        int size = 0;
        if (!in_.GetDirectBufferPointer(&data, &size) || size <= 0) {
          return Malformed(*field.containing_type());
        }
        size = std::min(size, left);
        const std::span bytes(static_cast<const uint8_t*>(data), static_cast<size_t>(size));
        // Each number ends with a byte that says so.
        count += static_cast<uint64_t>(
            std::ranges::count_if(bytes, [](uint8_t byte) { return byte < 0x80; }));
        in_.Skip(size);
        left -= size;
      }
    } else {
      if (!in_.Skip(length)) return Malformed(*field.containing_type());
      count = static_cast<uint64_t>(length) / (wire == Wire::kFixed64 ? 8 : 4);
    }
    // Its array has a head, and doubles as it grows.
    bytes_ += kPerElement + 2 * std::bit_ceil(count) * NumberBytes(field);
    return Count(field, count);
  }
  Status ReadText(const FieldDescriptor& field, int length) {
    if (!in_.Skip(length)) return Malformed(*field.containing_type());
    const auto size = static_cast<uint64_t>(length);
    bytes_ += sizeof(std::string) + (size > kShortText ? size : 0);
    if (!field.is_repeated()) return OkStatus();
    bytes_ += kPerElement;
    return Count(field, 1);
  }
  Status ReadInner(const FieldDescriptor& field, int length) {
    if (field.is_repeated()) {
      bytes_ += kPerElement;
      CAIRN_RETURN_IF_ERROR(Count(field, 1));
    }
    bytes_ += BytesOf(*field.message_type());
    path_.push_back(&field);
    const auto outer = in_.PushLimit(length);
    CAIRN_RETURN_IF_ERROR(ReadMessage(*field.message_type()));
    in_.PopLimit(outer);
    path_.pop_back();
    return OkStatus();
  }
  // An empty message.
  uint64_t BytesOf(const Descriptor& type) {
    // The factory has no message for entries of maps, and would give null.
    if (type.options().map_entry()) return kPerMapEntry;
    for (const auto& [known, bytes] : sizes_) {
      if (known == &type) return bytes;
    }
    const google::protobuf::Message* const empty =
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
    sizes_.emplace_back(&type, empty->SpaceUsedLong());
    return sizes_.back().second;
  }
  Status Unknown(const Descriptor& type, int length) {
    if (length > 0 && !in_.Skip(length)) return Malformed(type);
    bytes_ += kPerUnknown + static_cast<uint64_t>(length);
    if (++unknown_ <= FrameBounds::kMostUnknown) return OkStatus();
    return InvalidArgument(
        "request: got more than {} fields that a {} does not have, expected at most as many",
        FrameBounds::kMostUnknown, type.full_name());
  }
  Status Count(const FieldDescriptor& field, uint64_t elements) {
    const auto bound = most_.find(&field);
    if (bound == most_.end()) return OkStatus();
    auto counted =
        std::ranges::find(counts_, &field, &std::pair<const FieldDescriptor*, uint64_t>::first);
    if (counted == counts_.end()) counted = counts_.insert(counts_.end(), {&field, 0});
    counted->second += elements;
    if (counted->second <= bound->second) return OkStatus();
    std::string name;
    for (const FieldDescriptor* const outer : path_) name += outer->name() + ".";
    return InvalidArgument("field '{}{}': got at least {} elements, expected at most {}", name,
                           field.name(), counted->second, bound->second);
  }

  const MostElements& most_;
  grpc::ProtoBufferReader reader_;
  google::protobuf::io::CodedInputStream in_;
  std::vector<const FieldDescriptor*> path_;  // The path of the message that is being read.
  // The counts of bounded fields.
  std::vector<std::pair<const FieldDescriptor*, uint64_t>> counts_;
  std::vector<std::pair<const Descriptor*, uint64_t>> sizes_;
  uint64_t bytes_ = 0;
  uint64_t unknown_ = 0;
};

}  // namespace

FrameBounds::FrameBounds(std::span<const FieldBound> bounds) {
  for (const FieldBound& bound : bounds) {
    const FieldDescriptor* const field =
        google::protobuf::DescriptorPool::generated_pool()->FindFieldByName(
            std::string(bound.field));
    if (field != nullptr) most_[field] = bound.most;
  }
}

Result<uint64_t> FrameBounds::Measure(const grpc::ByteBuffer& frame,
                                      const google::protobuf::Message& type) const {
  grpc::ByteBuffer bytes(frame);  // Reading empties it.
  return FrameWalk(most_, &bytes).Run(type);
}

}  // namespace cairn::rpc
