// What requests cost until they are refused: every RPC, every field that may come often.

#include "protocol/wire/request_bounds.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/support/slice.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cairn/v1/admin.pb.h"
#include "cairn/v1/cache.pb.h"
#include "cairn/v1/cluster.pb.h"
#include "cairn/v1/link.pb.h"
#include "cairn/v1/peer.pb.h"
#include "cairn/v1/router.pb.h"
#include "cairn/v1/worker.pb.h"
#include "common/rpc/frames.h"
#include "common/status/matchers.h"
#include "protocol/frames/wire_format.h"
#include "protocol/wire/message_limits.h"

namespace {

thread_local uint64_t allocated_bytes = 0;

}  // namespace

void* operator new(size_t bytes) {
  allocated_bytes += bytes;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }

namespace cairn::wire {
namespace {

using ::cairn::testing::StatusIs;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using ::testing::HasSubstr;

// Whatever is in the frame.
constexpr uint64_t kMostOfARefusal = 16 << 10;
constexpr uint64_t kFrame = kMaxMessageBytes;

using Path = std::vector<const FieldDescriptor*>;

std::vector<const MethodDescriptor*> AllMethods() {
  const std::vector<const FileDescriptor*> files = {
      v1::DropResponse::descriptor()->file(),    v1::MatchRequest::descriptor()->file(),
      v1::LocateRequest::descriptor()->file(),   v1::LinkMoveRequest::descriptor()->file(),
      v1::FindRequest::descriptor()->file(),     v1::PickResponse::descriptor()->file(),
      v1::GenerateRequest::descriptor()->file(),
  };
  std::vector<const MethodDescriptor*> methods;
  for (const FileDescriptor* const file : files) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        // Streams of frames have readers of their own, which bound their pieces: protocol/frames.
        if (file->service(s)->method(m)->client_streaming()) continue;
        methods.push_back(file->service(s)->method(m));
      }
    }
  }
  return methods;
}

// The way to each repeated field of a message, also in the messages in it.
void AddRepeated(const Descriptor& type, const Path& outer, std::vector<Path>* paths) {
  for (int i = 0; i < type.field_count(); ++i) {
    Path path = outer;
    path.push_back(type.field(i));
    if (type.field(i)->is_repeated()) paths->push_back(path);
    if (type.field(i)->message_type() != nullptr) {
      AddRepeated(*type.field(i)->message_type(), path, paths);
    }
  }
}

std::vector<Path> RepeatedFields(const MethodDescriptor& method) {
  std::vector<Path> paths;
  AddRepeated(*method.input_type(), {}, &paths);
  return paths;
}

std::unique_ptr<google::protobuf::Message> NewRequest(const MethodDescriptor& method) {
  return std::unique_ptr<google::protobuf::Message>(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(method.input_type())
          ->New());
}

// The field with elements of a byte or two, as many as `most` and the size of a frame allow.
std::string FewBytesEach(const FieldDescriptor& field, uint64_t most) {
  std::string elements;
  if (!field.is_packable()) {
    for (uint64_t i = 0; i < most && elements.size() < kFrame - 64; ++i) {
      frames::PutBytesHeader(&elements, field.number(), 0);
    }
    return elements;
  }
  uint64_t bytes = 1;
  if (field.type() == FieldDescriptor::TYPE_FIXED64) bytes = 8;
  const uint64_t count = std::min(most, (kFrame - 64) / bytes);
  frames::PutBytesHeader(&elements, field.number(), count * bytes);
  return elements + std::string(count * bytes, '\1');
}

std::string FrameOf(const Path& path, uint64_t most) {
  std::string frame = FewBytesEach(*path.back(), most);
  for (size_t i = path.size() - 1; i-- > 0;) {
    std::string outer;
    frames::PutBytesHeader(&outer, path[i]->number(), frame.size());
    frame = outer + frame;
  }
  return frame;
}

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

struct Measured {
  Result<uint64_t> bytes;
  uint64_t cost = 0;
};
Measured Measure(const MethodDescriptor& method, const std::string& frame) {
  const auto request = NewRequest(method);
  const grpc::ByteBuffer buffer = Buffer(frame);
  const uint64_t before = allocated_bytes;
  auto measured = RequestBounds().Measure(buffer, *request);
  return {std::move(measured), allocated_bytes - before};
}

TEST(RequestBoundsTest, EveryFieldThatComesTooOftenIsRefusedByNameForNextToNothing) {
  size_t fields = 0;
  for (const MethodDescriptor* const method : AllMethods()) {
    for (const Path& path : RepeatedFields(*method)) {
      SCOPED_TRACE(method->full_name() + ", " + path.back()->full_name());
      ++fields;
      const Measured measured = Measure(*method, FrameOf(path, UINT64_MAX));
      EXPECT_LT(measured.cost, kMostOfARefusal);
      // A frame of token ids is what it says.
      if (path.back()->full_name() == "cairn.v1.TokenPrompt.ids") {
        EXPECT_OK(measured.bytes);
        continue;
      }
      EXPECT_THAT(measured.bytes,
                  StatusIs(StatusCode::kInvalidArgument, HasSubstr(path.back()->name())));
    }
  }
  EXPECT_GE(fields, 20u);
}

TEST(RequestBoundsTest, FieldsThatNobodyKnowsAreRefusedForNextToNothing) {
  for (const MethodDescriptor* const method : AllMethods()) {
    SCOPED_TRACE(method->full_name());
    std::string few, many;
    for (int i = 0; i < 100; ++i) frames::PutNumber(&few, 1999, 1);
    while (many.size() < kFrame - 64) frames::PutNumber(&many, 1999, 1);
    EXPECT_OK(Measure(*method, few).bytes);
    const Measured measured = Measure(*method, many);
    EXPECT_THAT(measured.bytes, StatusIs(StatusCode::kInvalidArgument, HasSubstr("does not have")));
    EXPECT_LT(measured.cost, kMostOfARefusal);
  }
}

TEST(RequestBoundsTest, WhatPassesTakesNoMoreMemoryThanWasMeasured) {
  for (const MethodDescriptor* const method : AllMethods()) {
    for (const Path& path : RepeatedFields(*method)) {
      SCOPED_TRACE(method->full_name() + ", " + path.back()->full_name());
      for (const uint64_t most : {1, 3, 64, 1000, 1 << 20}) {
        const std::string frame = FrameOf(path, most);
        const Measured measured = Measure(*method, frame);
        if (!measured.bytes.ok()) continue;
        const auto request = NewRequest(*method);
        ASSERT_TRUE(rpc::FromFrame(Buffer(frame), request.get()));
        EXPECT_LE(request->SpaceUsedLong(), *measured.bytes) << most;
      }
    }
  }
}

// A namespace of 2.8 MB that was refused for its groups cost a node 86 MiB.
TEST(RequestBoundsTest, ANamespaceOfManyPlanesIsRefusedBeforeItIsBuilt) {
  v1::OpenNamespaceRequest request;
  auto& native = *request.mutable_spec()->mutable_layout()->mutable_native();
  for (int i = 0; i < 65535; ++i) {
    v1::Plane& plane = *native.add_groups()->add_planes();
    plane.set_name("k" + std::to_string(i));
    plane.set_heads(1);
  }
  const grpc::ByteBuffer frame = rpc::ToFrame(request);
  const uint64_t before = allocated_bytes;
  const auto measured = RequestBounds().Measure(frame, v1::OpenNamespaceRequest());
  EXPECT_LT(allocated_bytes - before, kMostOfARefusal);
  EXPECT_THAT(measured, StatusIs(StatusCode::kInvalidArgument,
                                 HasSubstr("field 'spec.layout.native.groups.planes': got at "
                                           "least 16385 elements, expected at most 16384")));
}

TEST(RequestBoundsTest, WhatIsNoMessageIsRefused) {
  for (const std::string& bytes :
       {std::string("\x0a\xff", 2), std::string("\x0b\x0c", 2), std::string("\x0a\x05 ab", 5),
        std::string("\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12)}) {
    EXPECT_THAT(RequestBounds().Measure(Buffer(bytes), v1::MatchRequest()),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("cairn.v1.MatchRequest")));
  }
}

}  // namespace
}  // namespace cairn::wire
