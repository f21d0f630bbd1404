#pragma once
// Reads cairn.v1.PushFrame messages in place: `data` stays where gRPC received it, and is copied once, into its reservation.

#include <grpcpp/impl/codegen/proto_buffer_reader.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "services/common/status/status.h"

namespace cairn::cache {

// One frame. Pieces point into the buffer that was parsed, which lives as long as the frame. Not thread-safe.
class PushFrameView {
 public:
  struct Piece {
    uint64_t reservation_id = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    std::vector<std::span<const std::byte>>
        data;  // In order; one piece may lie in several buffers.
  };

  // INVALID_ARGUMENT for bytes that are no PushFrame. Fields that are not known are skipped.
  static Result<std::unique_ptr<PushFrameView>> Parse(grpc::ByteBuffer buffer);

  const std::string& session_id() const { return session_id_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<uint64_t>& commit_ids() const { return commit_ids_; }

 private:
  PushFrameView() = default;
  Status ParseFields();
  grpc::ByteBuffer buffer_;
  std::unique_ptr<grpc::ProtoBufferReader> reader_;  // Holds the received slices.
  std::string session_id_;
  std::vector<Piece> pieces_;
  std::vector<uint64_t> commit_ids_;
};

}  // namespace cairn::cache
