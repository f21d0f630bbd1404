#pragma once
// Checks everything that the other side wrote. Each function takes or makes a private copy, so
// nothing here reads shared memory twice.

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/kv/joint_match.h"
#include "cairn/common/status.h"
#include "protocol/shm/protocol.h"

namespace cairn::shm {

// ---- Node ----

struct DecodedSubmission {
  Op op = Op::kMatch;
  uint8_t flags = 0;
  uint32_t argument = 0;
  uint32_t count = 0;     // Entries of the input.
  Area input, output;     // Inside the scratch.
  uint32_t capacity = 0;  // Entries that fit into the output.
  Digest fingerprint;     // kMatch, kMatchPools, kExists, kReserve.
  LocateBody locate;      // kLocate, kRenew, kReport.
};

// INVALID_ARGUMENT, which names the field. `submission` is a private copy.
Result<DecodedSubmission> Decode(const Submission& submission, uint32_t scratch_bytes);

// Copies `count` entries of the input out of the scratch. REQUIRES: Decode returned `input` for
// this scratch.
template <typename T>
void CopyIn(std::span<const std::byte> scratch, const Area& input, T* to, size_t count) {
  if (count == 0) return;  // `to` may be null then.
  std::memcpy(static_cast<void*>(to), scratch.data() + input.offset, count * sizeof(T));
}
template <typename T>
void CopyOut(std::span<std::byte> scratch, const Area& output, const T* from, size_t count) {
  if (count == 0) return;
  std::memcpy(scratch.data() + output.offset, from, count * sizeof(T));
}

// The question of a kMatchPools, from the beginning of its input. INVALID_ARGUMENT, which names the
// field: more pools than entries, or something in what is not used. CheckQuestion checks the rest.
Result<JointQuestion> DecodeQuestion(const PoolQuestion& question);

// INVALID_ARGUMENT, which names the field: magic, version, type, length, or the tenant, which must
// have 1 to 128 printable characters.
struct DecodedHello {
  std::string token;  // 16 bytes.
  std::string tenant;
  std::string client;
};
Result<DecodedHello> DecodeHello(std::span<const std::byte> message);
// The uuids. INVALID_ARGUMENT, which names the field.
Result<std::vector<std::string>> DecodeDevices(std::span<const std::byte> message);

// ---- Client ----

// DATA_LOSS, which names the wrong field, unless the completion belongs to `submission`.
Status Check(const Completion& completion, const Submission& submission);
// DATA_LOSS unless the state is known, the rectangle is not empty, and a part that is kHere lies
// inside its segment. `place` is a private copy. `segment_bytes`: the size of the segment that it
// names.
Status CheckPlace(const PlaceEntry& place, uint64_t segment_bytes);
// The same check for a grant of `part_bytes` with code 0.
Status CheckGrant(const Grant& grant, uint64_t part_bytes, uint64_t segment_bytes);
// The answer of a kMatchPools, which leased `matched` blocks: the whole of its output, a private
// copy. DATA_LOSS, which says what is wrong.
Result<JointAnswer> DecodeAnswer(std::span<const std::byte> output, uint32_t matched);
// The error text of a completion, with only its printable characters.
std::string TextOf(const Completion& completion, std::span<const std::byte> scratch,
                   const Area& output);

// ---- Both ----

// The type of a message. INVALID_ARGUMENT: the magic, version or length is wrong.
Result<MessageType> TypeOf(std::span<const std::byte> message);
// REQUIRES: TypeOf returned this type.
template <typename T>
T As(std::span<const std::byte> message) {
  T value;
  std::memcpy(&value, message.data(), sizeof(value));
  return value;
}
Result<Welcome> DecodeWelcome(std::span<const std::byte> message, size_t descriptors);
Result<Segments> DecodeSegments(std::span<const std::byte> message, size_t descriptors);
Result<Chunks> DecodeChunks(std::span<const std::byte> message, size_t descriptors);
// The text of a padded field, up to its first 0.
template <size_t N>
std::string Text(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}
// Fills a padded text field and cuts off text that does not fit.
template <size_t N>
void SetText(char (&field)[N], std::string_view text) {
  std::memset(field, 0, N);
  std::memcpy(field, text.data(), text.size() < N ? text.size() : N - 1);
}

}  // namespace cairn::shm
