#include "protocol/link/link_convert.h"

#include <cmath>
#include <limits>

namespace cairn::link {
namespace {

template <typename Message>
std::vector<MemorySize> MemoriesOf(const Message& proto) {
  std::vector<MemorySize> memories;
  for (const v1::LinkMemory& memory : proto.memories()) {
    memories.push_back({memory.number(), memory.bytes()});
  }
  return memories;
}

template <typename Message>
void SetMemories(const std::vector<MemorySize>& memories, Message* out) {
  for (const MemorySize& memory : memories) {
    v1::LinkMemory* const to = out->add_memories();
    to->set_number(memory.number);
    to->set_bytes(memory.bytes);
  }
}

Result<int32_t> VersionOf(uint32_t version) {
  if (version > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgument("nccl_version: got {}, expected 31 bits", version);
  }
  return static_cast<int32_t>(version);
}

}  // namespace

Status CheckReader(const std::string& reader) {
  if (!reader.empty() && reader.size() <= 128) return OkStatus();
  return InvalidArgument("reader: got {} characters, expected 1 to 128", reader.size());
}

void ToProto(const OpenRequest& request, const std::string& reader, v1::LinkOpenRequest* out) {
  out->set_reader(reader);
  out->set_epoch(request.epoch);
  out->set_unique_id(request.id.data(), request.id.size());
  out->set_host(request.host);
  out->set_nccl_version(static_cast<uint32_t>(request.version));
  SetMemories(request.memories, out);
}

Result<OpenRequest> FromProto(const v1::LinkOpenRequest& proto) {
  OpenRequest request{.epoch = proto.epoch(), .host = proto.host(), .memories = MemoriesOf(proto)};
  CAIRN_ASSIGN_OR_RETURN(request.version, VersionOf(proto.nccl_version()));
  if (proto.unique_id().size() != request.id.size()) {
    return InvalidArgument("unique_id: got {} bytes, expected {}", proto.unique_id().size(),
                           request.id.size());
  }
  proto.unique_id().copy(request.id.data(), request.id.size());
  CAIRN_RETURN_IF_ERROR(Check(request));
  return request;
}

void ToProto(const OpenAnswer& answer, v1::LinkOpenResponse* out) {
  out->set_host(answer.host);
  out->set_nccl_version(static_cast<uint32_t>(answer.version));
  SetMemories(answer.memories, out);
}

Result<OpenAnswer> FromProto(const v1::LinkOpenResponse& proto) {
  OpenAnswer answer{.host = proto.host(), .memories = MemoriesOf(proto)};
  CAIRN_ASSIGN_OR_RETURN(answer.version, VersionOf(proto.nccl_version()));
  CAIRN_RETURN_IF_ERROR(Check(answer));
  return answer;
}

void ToProto(const MoveRequest& request, const std::string& reader, v1::LinkMoveRequest* out) {
  out->set_reader(reader);
  out->set_epoch(request.epoch);
  out->set_sequence(request.sequence);
  out->set_way(static_cast<v1::LinkWay>(request.way));
  for (const Piece& piece : request.plan.pieces) {
    v1::LinkPiece* const to = out->add_pieces();
    to->set_source_memory(piece.source);
    to->set_source_offset(piece.source_offset);
    to->set_target_memory(piece.target);
    to->set_target_offset(piece.target_offset);
    to->set_bytes(piece.bytes);
  }
  out->set_timeout_seconds(Seconds(request.timeout));
}

Result<MoveRequest> FromProto(const v1::LinkMoveRequest& proto) {
  static_assert(static_cast<int>(Way::kSend) == v1::LINK_WAY_SEND);
  static_assert(static_cast<int>(Way::kPut) == v1::LINK_WAY_PUT);
  if (proto.way() != v1::LINK_WAY_SEND && proto.way() != v1::LINK_WAY_PUT) {
    return InvalidArgument("way: got {}, expected send or put", static_cast<int>(proto.way()));
  }
  if (static_cast<size_t>(proto.pieces_size()) > Plan::kMostPieces) {
    return InvalidArgument("pieces: got {}, expected 1 to {}", proto.pieces_size(),
                           Plan::kMostPieces);
  }
  // Larger ones do not fit a Duration; Check has the real bound.
  const double seconds = proto.timeout_seconds();
  if (!std::isfinite(seconds) || seconds <= 0 || seconds > 1e6) {
    return InvalidArgument("timeout_seconds: got {}, expected more than 0 and at most 600",
                           seconds);
  }
  MoveRequest request{
      .epoch = proto.epoch(),
      .sequence = proto.sequence(),
      .way = static_cast<Way>(proto.way()),
      .timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds))};
  request.plan.pieces.reserve(static_cast<size_t>(proto.pieces_size()));
  for (const v1::LinkPiece& piece : proto.pieces()) {
    request.plan.pieces.push_back({.source = piece.source_memory(),
                                   .source_offset = piece.source_offset(),
                                   .target = piece.target_memory(),
                                   .target_offset = piece.target_offset(),
                                   .bytes = piece.bytes()});
  }
  CAIRN_RETURN_IF_ERROR(Check(request));
  return request;
}

}  // namespace cairn::link
