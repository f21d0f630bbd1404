#include "services/cache/serve/rpc/request_fields.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/keys/call_limits.h"
#include "protocol/wire/convert.h"

namespace cairn::cache {
namespace {

constexpr double kMaxComputeSeconds = 86400;
constexpr uint64_t kMaxPosition = 1ull << 40;

Status CheckRange(uint32_t begin, uint32_t end, const std::string& what) {
  if (end != 0 && begin >= end) {
    return InvalidArgument("{}_begin: got {}, expected less than {}_end = {}", what, begin, what,
                           end);
  }
  return OkStatus();
}

}  // namespace

Result<SessionToken> ToSessionToken(std::string_view bytes) {
  SessionToken token;
  if (bytes.size() != token.size()) {
    return InvalidArgument(
        "session_id: got {} bytes, expected the 16 bytes of OpenSession's first message",
        bytes.size());
  }
  std::memcpy(token.data(), bytes.data(), token.size());
  return token;
}

Result<std::optional<Digest>> ToOptionalDigest(std::string_view bytes, std::string_view field) {
  if (bytes.empty()) return std::optional<Digest>();
  CAIRN_ASSIGN_OR_RETURN(Digest digest, Digest::FromBytes(bytes, field));
  return std::optional<Digest>(digest);
}

uint32_t ToMs(Duration duration) {
  return static_cast<uint32_t>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

Result<Duration> ToTtl(uint32_t ms, const std::string& field) {
  if (ms > kMaxTtlMs) {
    return InvalidArgument("{}: got {}, expected 0 to {} milliseconds", field, ms, kMaxTtlMs);
  }
  return Duration(std::chrono::milliseconds(ms));
}

Status CheckNumber(double value, double max, const std::string& field) {
  if (std::isfinite(value) && value >= 0 && value <= max) return OkStatus();
  return InvalidArgument("{}: got {}, expected a finite number from 0 to {}", field, value, max);
}

Status CheckId(uint64_t id, const std::string& field) {
  if (id != 0) return OkStatus();
  return InvalidArgument("{}: got 0, expected an id that the node gave", field);
}

Status CheckIds(std::span<const uint64_t> ids, size_t min, size_t max, const std::string& field) {
  if (ids.size() < min || ids.size() > max) {
    return InvalidArgument("{}: got {} ids, expected {} to {}", field, ids.size(), min, max);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == 0) CAIRN_RETURN_IF_ERROR(CheckId(0, fmt::format("{}[{}]", field, i)));
  }
  return OkStatus();
}

Status CheckHolders(std::span<const std::string> holders, const std::string& field) {
  if (holders.size() > kMaxHolders) {
    return InvalidArgument("{}: got {} of them, expected at most {}", field, holders.size(),
                           kMaxHolders);
  }
  for (size_t i = 0; i < holders.size(); ++i) {
    if (!holders[i].empty() && holders[i].size() <= kMaxNodeId) continue;
    return InvalidArgument("{}[{}]: got {} characters, expected 1 to {}", field, i,
                           holders[i].size(), kMaxNodeId);
  }
  return OkStatus();
}

Status CheckClientName(std::string_view name) {
  if (name.size() <= kMaxClientName) return OkStatus();
  return InvalidArgument("client_name: got {} characters, expected at most {}", name.size(),
                         kMaxClientName);
}

Result<FetchRange> ToFetchRange(const v1::FetchRequest& request) {
  if (request.has_lookup()) {
    for (const auto& [field, value] :
         {std::pair<std::string_view, uint64_t>("lease_id", request.lease_id()),
          {"block_begin", request.block_begin()},
          {"block_end", request.block_end()}}) {
      if (value != 0) {
        return InvalidArgument("{}: got {}, expected 0 together with a lookup", field, value);
      }
    }
  } else {
    CAIRN_RETURN_IF_ERROR(CheckId(request.lease_id(), "lease_id"));
  }
  CAIRN_RETURN_IF_ERROR(CheckRange(request.block_begin(), request.block_end(), "block"));
  CAIRN_RETURN_IF_ERROR(CheckRange(request.layer_begin(), request.layer_end(), "layer"));
  return FetchRange{request.lease_id(), request.block_begin(), request.block_end(),
                    request.layer_begin(), request.layer_end()};
}

Result<std::vector<RowGroup>> ToRowGroups(const v1::FetchRequest& request) {
  std::vector<RowGroup> groups;
  if (request.rows().empty()) return groups;
  if (request.has_lookup()) {
    return InvalidArgument("rows: got {} groups together with a lookup, expected a lease",
                           request.rows_size());
  }
  if (request.reader_verifies()) {
    return InvalidArgument("reader_verifies: got true, expected false with rows");
  }
  if (request.layer_end() != request.layer_begin() + 1) {
    return InvalidArgument("layer_end: got {}, expected {} with rows: layer_begin and one more",
                           request.layer_end(), uint64_t{request.layer_begin()} + 1);
  }
  if (static_cast<size_t>(request.rows_size()) > kMaxRowGroups) {
    return InvalidArgument("rows: got {} groups, expected at most {}", request.rows_size(),
                           kMaxRowGroups);
  }
  groups.reserve(static_cast<size_t>(request.rows_size()));
  for (const v1::RowGroup& group : request.rows()) {
    if (request.block_end() != 0 &&
        (group.block() < request.block_begin() || group.block() >= request.block_end())) {
      return InvalidArgument("rows[{}].block: got {}, expected one of blocks [{}, {})",
                             groups.size(), group.block(), request.block_begin(),
                             request.block_end());
    }
    groups.push_back({group.block(),
                      group.head(),
                      {group.mask().data(), static_cast<size_t>(group.mask_size())}});
  }
  return groups;
}

Result<std::vector<ReservePartRequest>> ToParts(const v1::ReserveRequest& request,
                                                const Layout& layout) {
  std::vector<ReservePartRequest> parts;
  parts.reserve(static_cast<size_t>(request.parts_size()));
  for (int i = 0; i < request.parts_size(); ++i) {
    const v1::ReservePart& in = request.parts(i);
    // Names are made only for errors: a call may carry thousands of parts.
    const auto field = [i](const char* name) { return fmt::format("parts[{}].{}", i, name); };
    ReservePartRequest part;
    if (in.key().size() != sizeof(Digest)) {
      return Digest::FromBytes(in.key(), field("key")).status();
    }
    std::memcpy(&part.key, in.key().data(), sizeof(Digest));
    if (!in.parent().empty() && in.parent().size() != sizeof(Digest)) {
      return Digest::FromBytes(in.parent(), field("parent")).status();
    }
    if (!in.parent().empty()) {
      part.parent.emplace();
      std::memcpy(&*part.parent, in.parent().data(), sizeof(Digest));
    }
    if (in.first_position() > kMaxPosition) {
      return InvalidArgument("{}: got {}, expected 0 to {}", field("first_position"),
                             in.first_position(), kMaxPosition);
    }
    part.first_position = in.first_position();
    if (!in.has_part()) {
      return InvalidArgument("{}: missing, expected a rectangle of layers and heads",
                             field("part"));
    }
    const auto rect = wire::FromProto(in.part(), "part");
    if (!rect.ok()) return Annotate(rect.status(), fmt::format("parts[{}]", i));
    part.part = *rect;
    if (const Status grid = wire::CheckInGrid(*rect, layout, "part"); !grid.ok()) {
      return Annotate(grid, fmt::format("parts[{}]", i));
    }
    if (in.bytes() < 1 || in.bytes() > kMaxPartBytes) {
      return InvalidArgument("{}: got {}, expected 1 to {}", field("bytes"), in.bytes(),
                             kMaxPartBytes);
    }
    part.bytes = in.bytes();
    if (!(in.compute_seconds() >= 0 && in.compute_seconds() <= kMaxComputeSeconds)) {
      return CheckNumber(in.compute_seconds(), kMaxComputeSeconds, field("compute_seconds"));
    }
    part.compute_seconds = in.compute_seconds();
    parts.push_back(part);
  }
  return parts;
}

}  // namespace cairn::cache
