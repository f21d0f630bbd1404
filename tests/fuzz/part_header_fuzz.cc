// Any bytes as a part: an error, or a header whose slices lie in the part one behind the other, and
// which WriteHeader writes with the same bytes.
//
// First byte: bit 0 the header's sizes are made right for its rectangle, bit 1 its hash, bit 2 the
// hashes of the slices. The rest is the part.

#include <algorithm>
#include <cstring>

#include "cairn/common/hash.h"
#include "cairn/common/part.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using namespace cairn::format;
using fuzz::Expect;

constexpr size_t kFixedBytes = 64;

template <typename T>
T Load(const std::vector<std::byte>& part, size_t at) {
  T value;
  std::memcpy(&value, part.data() + at, sizeof(value));
  return value;
}
template <typename T>
void Store(std::vector<std::byte>& part, size_t at, T value) {
  std::memcpy(part.data() + at, &value, sizeof(value));
}

void RepairSizes(std::vector<std::byte>& part) {
  std::memcpy(part.data(), "CAIRNPT1", 8);
  Store<uint16_t>(part, 12, kPartVersion);
  const auto layers = static_cast<uint16_t>(Load<uint16_t>(part, 18) - Load<uint16_t>(part, 16));
  Store<uint32_t>(part, 28, layers);
  Store<uint32_t>(part, 8, HeaderBytes(layers));
}

void RepairSliceHashes(std::vector<std::byte>& part) {
  const uint32_t slices = Load<uint32_t>(part, 28);
  for (size_t at = kFixedBytes; at + 24 <= part.size() && at < kFixedBytes + 24ull * slices;
       at += 24) {
    const auto offset = Load<uint64_t>(part, at), length = Load<uint64_t>(part, at + 8);
    if (offset > part.size() || length > part.size() - offset) continue;
    Store<uint64_t>(part, at + 16, Xxh3(std::span(part).subspan(offset, length)));
  }
}

void RepairHash(std::vector<std::byte>& part) {
  const auto bytes = Load<uint32_t>(part, 8);
  if (bytes < kFixedBytes || bytes > part.size()) return;
  Store<uint64_t>(part, 40, 0);
  Store<uint64_t>(part, 40, Xxh3(std::span(part).first(bytes)));
}

void Check(const PartHeader& header, const std::vector<std::byte>& part) {
  const PartRect& rect = header.rect;
  Expect(rect.layer_begin < rect.layer_end && rect.head_begin < rect.head_end);
  Expect(header.slices.size() == static_cast<size_t>(rect.layer_end - rect.layer_begin));
  std::vector<uint64_t> lengths, hashes;
  uint64_t at = HeaderBytes(static_cast<uint32_t>(header.slices.size()));
  for (const SliceEntry& slice : header.slices) {
    Expect(slice.offset == at && slice.length <= header.total_bytes - at);
    at += slice.length;
    lengths.push_back(slice.length);
    hashes.push_back(slice.xxh3);
  }
  Expect(at == header.total_bytes);
  std::vector<std::byte> again(HeaderBytes(static_cast<uint32_t>(header.slices.size())));
  WriteHeader(again, header.codec, rect, header.block_tokens, lengths, hashes, header.selected);
  Expect(std::equal(again.begin(), again.end(), part.begin()));
}

}  // namespace

CAIRN_FUZZ_ENTRY(part_header)(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t repair = input.U8();
  std::vector<std::byte> part = fuzz::Copy(input.Rest());
  if (part.size() >= kFixedBytes) {
    if ((repair & 1) != 0) RepairSizes(part);
    if ((repair & 4) != 0) RepairSliceHashes(part);
    if ((repair & 2) != 0) RepairHash(part);
  }
  const auto header = ParseHeader(part);
  if (header.ok()) Check(*header, part);
  const auto verified = VerifyPart(part);
  if (!verified.ok()) return 0;
  Expect(header.ok() && header->total_bytes == part.size());
  for (const SliceEntry& slice : verified->slices) {
    Expect(VerifySlice(slice, std::span(part).subspan(slice.offset, slice.length)));
  }
  return 0;
}
