#include "common/link/messages.h"

#include <algorithm>
#include <utility>

namespace cairn::link {
namespace {

constexpr Duration kLongestMove = std::chrono::minutes(10);

Status CheckMemories(const std::vector<MemorySize>& memories) {
  if (memories.size() > OpenRequest::kMostMemories) {
    return InvalidArgument("memories: got {}, expected at most {}", memories.size(),
                           OpenRequest::kMostMemories);
  }
  for (size_t i = 0; i < memories.size(); ++i) {
    if (memories[i].bytes == 0) {
      return InvalidArgument("memories: got {} of 0 bytes, expected more", memories[i].number);
    }
    if (i > 0 && memories[i].number <= memories[i - 1].number) {
      return InvalidArgument("memories: got {} after {}, expected rising numbers",
                             memories[i].number, memories[i - 1].number);
    }
  }
  return OkStatus();
}

Status CheckHostAndVersion(const std::string& host, int32_t version) {
  if (host.empty() || host.size() > 128) {
    return InvalidArgument("host: got {} characters, expected 1 to 128", host.size());
  }
  if (version <= 0) return InvalidArgument("version: got {}, expected more than 0", version);
  return OkStatus();
}

}  // namespace

uint64_t Plan::bytes() const {
  uint64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.bytes;
  return sum;
}

Status Plan::Check() const {
  if (pieces.empty() || pieces.size() > kMostPieces) {
    return InvalidArgument("pieces: got {}, expected 1 to {}", pieces.size(), kMostPieces);
  }
  uint64_t sum = 0;
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0 || piece.bytes > kMostBytes - sum) {
      return InvalidArgument("bytes of a piece: got {}, expected 1 to {} with those before it",
                             piece.bytes, kMostBytes);
    }
    sum += piece.bytes;
    if (piece.source_offset > UINT64_MAX - piece.bytes ||
        piece.target_offset > UINT64_MAX - piece.bytes) {
      return InvalidArgument("offsets of a piece: got {} and {}, which end beyond 64 bits",
                             piece.source_offset, piece.target_offset);
    }
  }
  std::vector<std::pair<std::pair<uint32_t, uint64_t>, uint64_t>> targets;
  for (const Piece& piece : pieces) {
    targets.push_back({{piece.target, piece.target_offset}, piece.bytes});
  }
  std::sort(targets.begin(), targets.end());
  for (size_t i = 1; i < targets.size(); ++i) {
    const auto& [before, bytes] = targets[i - 1];
    if (before.first == targets[i].first.first && before.second + bytes > targets[i].first.second) {
      return InvalidArgument("target_offset: got {} of memory {}, where another piece lies",
                             targets[i].first.second, before.first);
    }
  }
  return OkStatus();
}

Status Check(const OpenRequest& request) {
  if (request.epoch == 0) return InvalidArgument("epoch: got 0, expected more");
  CAIRN_RETURN_IF_ERROR(CheckHostAndVersion(request.host, request.version));
  return CheckMemories(request.memories);
}

Status Check(const OpenAnswer& answer) {
  CAIRN_RETURN_IF_ERROR(CheckHostAndVersion(answer.host, answer.version));
  return CheckMemories(answer.memories);
}

Status Check(const MoveRequest& request) {
  if (request.epoch == 0) return InvalidArgument("epoch: got 0, expected more");
  if (request.sequence == 0) return InvalidArgument("sequence: got 0, expected more");
  if (request.timeout <= Duration(0) || request.timeout > kLongestMove) {
    return InvalidArgument("timeout: got {} s, expected more than 0 and at most {} s",
                           Seconds(request.timeout), Seconds(kLongestMove));
  }
  if (request.way != Way::kSend && request.way != Way::kPut) {
    return InvalidArgument("way: got {}, expected send or put", static_cast<int>(request.way));
  }
  return request.plan.Check();
}

}  // namespace cairn::link
