#include "protocol/shm/decode.h"

#include <absl/status/status.h>

#include <algorithm>

#include "cairn/common/tier_kind.h"
#include "protocol/shm/ring.h"

namespace cairn::shm {
namespace {

constexpr uint8_t kLastCode = 16;       // absl::StatusCode::kUnauthenticated.
constexpr uint8_t kLastMissReason = 9;  // MissReason of proto/cairn/v1/common.proto.
constexpr uint32_t kMaxKeys = 65536;    // As the network's.
constexpr uint32_t kMaxParts = 4096;
constexpr uint32_t kMaxIds = 65536;

Status CheckArea(const char* field, const Area& area, uint32_t scratch_bytes) {
  if (area.offset % 8 != 0) {
    return InvalidArgument("field '{}.offset': got {}, expected a multiple of 8", field,
                           area.offset);
  }
  if (area.offset > scratch_bytes || area.bytes > scratch_bytes - area.offset) {
    return InvalidArgument(
        "field '{}': got {} bytes at {}, expected to end within the scratch's {}", field,
        area.bytes, area.offset, scratch_bytes);
  }
  return OkStatus();
}

// How the op reads its input and writes its output; 0: it has none.
struct Shape {
  uint32_t input_entry, max_inputs, output_entry;
  bool output_per_input;
};
Shape ShapeOf(Op op) {
  switch (op) {
    case Op::kMatch:
      return {kKeyBytes, kMaxKeys, sizeof(PlaceEntry), false};
    case Op::kExists:
      return {kKeyBytes, kMaxKeys, 1, true};
    case Op::kLocate:
      return {0, 0, sizeof(PlaceEntry), false};
    case Op::kRelease:
      return {sizeof(uint64_t), kMaxIds, 0, false};
    case Op::kRenew:
      return {0, 0, 0, false};
    case Op::kReserve:
      return {sizeof(ReserveEntry), kMaxParts, sizeof(Grant), true};
    case Op::kCommit:
      return {sizeof(uint64_t), kMaxParts, 1, true};
    case Op::kAbort:
      return {sizeof(uint64_t), kMaxIds, 0, false};
    case Op::kReport:
      return {0, 0, 0, false};
    case Op::kMatchPools:  // Behind the question.
      return {kKeyBytes, kMaxKeys, 1, false};
  }
  return {};
}

Status Damaged(const std::string& text) { return Status(StatusCode::kDataLoss, "node: " + text); }

bool Printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

bool IsDeviceName(std::string_view text) {
  return !text.empty() && text.size() < sizeof(DeviceName::uuid) && Printable(text);
}

}  // namespace

Result<DecodedSubmission> Decode(const Submission& s, uint32_t scratch_bytes) {
  if (s.op < 1 || s.op > kLastOp) {
    return InvalidArgument("field 'op': got {}, expected 1 to {}", s.op, kLastOp);
  }
  DecodedSubmission d;
  d.op = static_cast<Op>(s.op);
  const uint8_t known = d.op == Op::kMatch        ? kNoLease | kPlaces | kNextUse
                        : d.op == Op::kMatchPools ? kNoLease | kNextUse
                                                  : 0;
  if ((s.flags & ~known) != 0 || s.reserved != 0) {
    return InvalidArgument(
        "field 'flags': got {:#x} and reserved {:#x}, expected no more than {:#x} and 0", s.flags,
        s.reserved, known);
  }
  d.flags = s.flags;
  d.argument = s.argument;
  d.input = s.input;
  d.output = s.output;
  CAIRN_RETURN_IF_ERROR(CheckArea("input", d.input, scratch_bytes));
  CAIRN_RETURN_IF_ERROR(CheckArea("output", d.output, scratch_bytes));
  const Shape shape = ShapeOf(d.op);
  if (shape.input_entry == 0) {
    if (d.input.bytes != 0) {
      return InvalidArgument("field 'input': got {} bytes, expected none", d.input.bytes);
    }
  } else {
    const uint32_t before = d.op == Op::kMatchPools ? sizeof(PoolQuestion) : 0;
    const uint32_t bytes = d.input.bytes - std::min(d.input.bytes, before);
    d.count = bytes / shape.input_entry;
    if (bytes % shape.input_entry != 0 || d.count < 1 || d.count > shape.max_inputs) {
      return InvalidArgument("field 'input': got {} bytes, expected {}1 to {} entries of {}",
                             d.input.bytes, before == 0 ? "" : fmt::format("{} and ", before),
                             shape.max_inputs, shape.input_entry);
    }
  }
  d.capacity = shape.output_entry == 0 ? 0 : d.output.bytes / shape.output_entry;
  if (shape.output_per_input && d.capacity < d.count) {
    return InvalidArgument("field 'output': got room for {} entries, expected {}", d.capacity,
                           d.count);
  }
  if (d.op == Op::kMatchPools && d.output.bytes < sizeof(PoolAnswer)) {
    return InvalidArgument("field 'output': got {} bytes, expected at least {}", d.output.bytes,
                           sizeof(PoolAnswer));
  }
  switch (d.op) {
    case Op::kMatch:
    case Op::kMatchPools:
    case Op::kExists:
    case Op::kReserve:
      std::memcpy(d.fingerprint.bytes.data(), s.body, sizeof(s.body));
      break;
    case Op::kLocate:
    case Op::kRenew:
    case Op::kReport:
      std::memcpy(&d.locate, s.body, sizeof(s.body));
      if (d.locate.reserved[0] != 0 || d.locate.reserved[1] != 0) {
        return InvalidArgument("field 'body': got reserved bytes, expected 0");
      }
      break;
    default:
      break;
  }
  return d;
}

Result<JointQuestion> DecodeQuestion(const PoolQuestion& q) {
  if (q.pools < 1 || q.pools > kMaxPoolEntries) {
    return InvalidArgument("field 'pools': got {} pools, expected 1 to {}", q.pools,
                           kMaxPoolEntries);
  }
  bool clean = q.all <= 1;
  for (const uint32_t reserved : q.reserved) clean = clean && reserved == 0;
  for (uint32_t i = 0; i < kMaxPoolEntries; ++i) {
    const PoolNeedEntry& entry = q.entries[i];
    clean = clean && entry.reserved == 0 &&
            (i < q.pools || (entry.pool | entry.tail_tokens | entry.proof_blocks) == 0);
  }
  if (!clean) {
    return InvalidArgument("field 'pools': got something in bytes that are not used, expected 0");
  }
  JointQuestion question{
      .step_tokens = q.step_tokens, .most_tokens = q.most_tokens, .all = q.all != 0};
  for (uint32_t i = 0; i < q.pools; ++i) {
    question.pools.push_back({.pool = q.entries[i].pool,
                              .tail_tokens = q.entries[i].tail_tokens,
                              .proof_blocks = q.entries[i].proof_blocks});
  }
  return question;
}

Result<JointAnswer> DecodeAnswer(std::span<const std::byte> output, uint32_t matched) {
  PoolAnswer a;
  if (output.size() < sizeof(a)) {
    return Damaged(fmt::format("an answer over pools of {} bytes", output.size()));
  }
  std::memcpy(static_cast<void*>(&a), output.data(), sizeof(a));
  const auto bits = output.subspan(sizeof(a));
  if (a.runs > kMaxPoolEntries || a.bits_bytes != bits.size()) {
    return Damaged(
        fmt::format("an answer over pools with {} runs and {} bytes of bits, of which {} came",
                    a.runs, a.bits_bytes, bits.size()));
  }
  JointAnswer answer{.restorable_tokens = a.restorable_tokens};
  uint64_t blocks = 0;
  for (uint32_t i = 0; i < a.runs; ++i) {
    const PoolRunEntry& run = a.entries[i];
    answer.pool_runs.push_back({run.pool, run.first_block, run.blocks});
    blocks += run.blocks;
  }
  if (blocks != matched) {
    return Damaged(fmt::format("{} blocks in runs of pools, {} were leased", blocks, matched));
  }
  if (a.limiting_pool != PoolAnswer::kNoPool) answer.limiting_pool = a.limiting_pool;
  answer.restorable.assign(reinterpret_cast<const char*>(bits.data()), bits.size());
  return answer;
}

Result<MessageType> TypeOf(std::span<const std::byte> message) {
  MessageHeader header;
  if (message.size() < sizeof(header)) {
    return InvalidArgument("message: got {} bytes, expected at least {}", message.size(),
                           sizeof(header));
  }
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.magic != kMagic) {
    return InvalidArgument("message: got magic {:#x}, expected {:#x}", header.magic, kMagic);
  }
  if (header.version != kVersion) {
    return InvalidArgument("message: got version {}, expected {}", header.version, kVersion);
  }
  const auto type = static_cast<MessageType>(header.type);
  const size_t expected = MessageBytes(type);
  if (expected == 0 || message.size() != expected) {
    return InvalidArgument("message of type {}: got {} bytes, expected {}", header.type,
                           message.size(), expected);
  }
  return type;
}

Result<DecodedHello> DecodeHello(std::span<const std::byte> message) {
  CAIRN_ASSIGN_OR_RETURN(const MessageType type, TypeOf(message));
  if (type != MessageType::kHello) {
    return InvalidArgument("message: got type {}, expected a Hello", static_cast<int>(type));
  }
  const auto hello = As<Hello>(message);
  DecodedHello decoded;
  decoded.token.assign(reinterpret_cast<const char*>(hello.token), sizeof(hello.token));
  decoded.tenant = Text(hello.tenant);
  decoded.client = Text(hello.client);
  if (decoded.tenant.empty() || !Printable(decoded.tenant)) {
    return InvalidArgument("field 'tenant': got {} characters, expected 1 to {} printable ones",
                           decoded.tenant.size(), sizeof(hello.tenant));
  }
  if (!Printable(decoded.client)) {
    return InvalidArgument("field 'client': expected printable characters");
  }
  return decoded;
}

Result<std::vector<std::string>> DecodeDevices(std::span<const std::byte> message) {
  CAIRN_ASSIGN_OR_RETURN(const MessageType type, TypeOf(message));
  if (type != MessageType::kDevices) {
    return InvalidArgument("message: got type {}, expected Devices", static_cast<int>(type));
  }
  const auto devices = As<Devices>(message);
  if (devices.count < 1 || devices.count > kMaxDevicesPerMessage || devices.reserved != 0) {
    return InvalidArgument("field 'count': got {} and reserved {}, expected 1 to {} and 0",
                           devices.count, devices.reserved, kMaxDevicesPerMessage);
  }
  std::vector<std::string> uuids;
  for (uint32_t i = 0; i < devices.count; ++i) {
    std::string uuid = Text(devices.entries[i].uuid);
    if (!IsDeviceName(uuid)) {
      return InvalidArgument("field 'uuid': got {} characters, expected 1 to {} printable ones",
                             uuid.size(), sizeof(DeviceName::uuid) - 1);
    }
    uuids.push_back(std::move(uuid));
  }
  return uuids;
}

Status Check(const Completion& c, const Submission& s) {
  if (c.cookie != s.cookie || c.op != s.op) {
    return Damaged(fmt::format("completion {} of op {}, expected {} of op {}", c.cookie, c.op,
                               s.cookie, s.op));
  }
  if (c.code > kLastCode) return Damaged(fmt::format("unknown status code {}", c.code));
  if (c.miss_reason > kLastMissReason) {
    return Damaged(fmt::format("unknown miss reason {}", c.miss_reason));
  }
  const bool text = (c.flags & kText) != 0;
  const Shape shape = ShapeOf(static_cast<Op>(s.op));
  const uint32_t entry = text ? 1 : shape.output_entry;
  if (entry == 0 ? c.count != 0 : c.count > s.output.bytes / entry) {
    return Damaged(fmt::format("{} entries in an output of {} bytes", c.count, s.output.bytes));
  }
  if (static_cast<Op>(s.op) == Op::kMatch && c.matched > s.input.bytes / kKeyBytes) {
    return Damaged(fmt::format("{} blocks matched, {} keys were asked for", c.matched,
                               s.input.bytes / kKeyBytes));
  }
  if (static_cast<Op>(s.op) == Op::kMatchPools &&
      c.matched > uint64_t{s.input.bytes / kKeyBytes} * kMaxPoolEntries) {
    return Damaged(fmt::format("{} blocks matched in all pools, with an input of {} bytes",
                               c.matched, s.input.bytes));
  }
  return OkStatus();
}

Status CheckPlace(const PlaceEntry& p, uint64_t segment_bytes) {
  if (p.state > static_cast<uint8_t>(PlaceState::kElsewhere)) {
    return Damaged(fmt::format("block {}: unknown state {}", p.block, p.state));
  }
  if (p.reason > kLastMissReason || p.tier > kTierCount) {
    return Damaged(fmt::format("block {}: reason {}, tier {}", p.block, p.reason, p.tier));
  }
  if (static_cast<PlaceState>(p.state) != PlaceState::kHere) return OkStatus();
  if (p.layer_begin >= p.layer_end || p.head_begin >= p.head_end) {
    return Damaged(fmt::format("block {}: empty rectangle", p.block));
  }
  if (p.bytes == 0 || p.offset > segment_bytes || p.bytes > segment_bytes - p.offset) {
    return Damaged(fmt::format("block {}: {} bytes at {} of segment {}, which has {}", p.block,
                               p.bytes, p.offset, p.segment, segment_bytes));
  }
  return OkStatus();
}

Status CheckGrant(const Grant& g, uint64_t part_bytes, uint64_t segment_bytes) {
  if (g.code > kLastCode) return Damaged(fmt::format("grant: unknown status code {}", g.code));
  if (g.code != 0) return OkStatus();
  if (g.reservation == 0 || g.offset > segment_bytes || part_bytes > segment_bytes - g.offset) {
    return Damaged(fmt::format("grant {}: {} bytes at {} of segment {}, which has {}",
                               g.reservation, part_bytes, g.offset, g.segment, segment_bytes));
  }
  return OkStatus();
}

std::string TextOf(const Completion& c, std::span<const std::byte> scratch, const Area& output) {
  if ((c.flags & kText) == 0) return {};
  const size_t bytes = std::min<size_t>(c.count, output.bytes);
  std::string text(bytes, '\0');
  std::memcpy(text.data(), scratch.data() + output.offset, bytes);
  for (char& ch : text) {
    if (ch < 0x20 || ch >= 0x7f) ch = '?';
  }
  return text;
}

Result<Welcome> DecodeWelcome(std::span<const std::byte> message, size_t descriptors) {
  CAIRN_ASSIGN_OR_RETURN(const MessageType type, TypeOf(message));
  if (type != MessageType::kWelcome) {
    return InvalidArgument("message: got type {}, expected a Welcome", static_cast<int>(type));
  }
  const auto welcome = As<Welcome>(message);
  if (welcome.code != 0) {
    const auto code = static_cast<StatusCode>(std::min<uint32_t>(welcome.code, kLastCode));
    return Status(code, "node: " + Text(welcome.text));
  }
  const RingShape shape{welcome.entries, welcome.scratch_bytes};
  if (!shape.valid() || descriptors != 1) {
    return Damaged(fmt::format("ring of {} entries, {} bytes of scratch, {} descriptors",
                               shape.entries, shape.scratch_bytes, descriptors));
  }
  return welcome;
}

Result<Segments> DecodeSegments(std::span<const std::byte> message, size_t descriptors) {
  CAIRN_ASSIGN_OR_RETURN(const MessageType type, TypeOf(message));
  if (type != MessageType::kSegments) {
    return InvalidArgument("message: got type {}, expected Segments", static_cast<int>(type));
  }
  const auto segments = As<Segments>(message);
  if (segments.count < 1 || segments.count > kMaxSegmentsPerMessage ||
      segments.count != descriptors) {
    return Damaged(fmt::format("{} segments with {} descriptors", segments.count, descriptors));
  }
  for (uint32_t i = 0; i < segments.count; ++i) {
    const SegmentEntry& entry = segments.entries[i];
    if (entry.id == 0 || entry.bytes == 0 || entry.bytes % 4096 != 0) {
      return Damaged(fmt::format("segment {} of {} bytes", entry.id, entry.bytes));
    }
  }
  return segments;
}

Result<Chunks> DecodeChunks(std::span<const std::byte> message, size_t descriptors) {
  CAIRN_ASSIGN_OR_RETURN(const MessageType type, TypeOf(message));
  if (type != MessageType::kChunks) {
    return InvalidArgument("message: got type {}, expected Chunks", static_cast<int>(type));
  }
  const auto chunks = As<Chunks>(message);
  if (chunks.count < 1 || chunks.count > kMaxChunksPerMessage || chunks.count != descriptors) {
    return Damaged(fmt::format("{} chunks with {} descriptors", chunks.count, descriptors));
  }
  for (uint32_t i = 0; i < chunks.count; ++i) {
    const ChunkEntry& entry = chunks.entries[i];
    if (entry.id == 0 || entry.bytes == 0 || entry.bytes % 4096 != 0 ||
        !IsDeviceName(Text(entry.device.uuid))) {
      return Damaged(fmt::format("chunk {} of {} bytes", entry.id, entry.bytes));
    }
  }
  return chunks;
}

}  // namespace cairn::shm
