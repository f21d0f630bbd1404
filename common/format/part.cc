#include "cairn/common/part.h"

#include <bit>
#include <cstring>

#include "cairn/common/hash.h"

namespace cairn::format {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr char kMagic[8] = {'C', 'A', 'I', 'R', 'N', 'P', 'T', '1'};
constexpr size_t kFixedBytes = 64;
constexpr size_t kEntryBytes = 24;

constexpr size_t kHeaderBytesAt = 8;
constexpr size_t kVersionAt = 12;
constexpr size_t kCodecAt = 14;
constexpr size_t kLayerBeginAt = 16;
constexpr size_t kLayerEndAt = 18;
constexpr size_t kHeadBeginAt = 20;
constexpr size_t kHeadEndAt = 22;
constexpr size_t kBlockTokensAt = 24;
constexpr size_t kFlagsAt = 26;
constexpr size_t kSliceCountAt = 28;
constexpr size_t kTotalBytesAt = 32;
constexpr size_t kHashAt = 40;
constexpr size_t kReservedAt = 48;

constexpr uint16_t kSelectedFlag = 1;

template <typename T>
T Load(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

template <typename T>
void Store(std::span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

bool AllZero(std::span<const std::byte> bytes) {
  for (std::byte b : bytes) {
    if (b != std::byte{0}) return false;
  }
  return true;
}

template <typename... Args>
Status Damaged(fmt::format_string<Args...> format, Args&&... args) {
  return Status(StatusCode::kDataLoss, "part: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

uint32_t HeaderBytes(uint32_t slice_count) {
  const uint64_t bytes = kFixedBytes + kEntryBytes * uint64_t{slice_count};
  return static_cast<uint32_t>((bytes + 63) / 64 * 64);
}

uint64_t PartBytes(std::span<const uint64_t> slice_lengths) {
  uint64_t bytes = HeaderBytes(static_cast<uint32_t>(slice_lengths.size()));
  for (uint64_t length : slice_lengths) bytes += length;
  return bytes;
}

void SealPart(std::span<std::byte> part, Codec codec, const PartRect& rect, uint16_t block_tokens,
              std::span<const uint64_t> slice_lengths, bool selected) {
  CAIRN_CHECK(part.size() == PartBytes(slice_lengths));
  std::vector<uint64_t> hashes;
  hashes.reserve(slice_lengths.size());
  size_t at = HeaderBytes(static_cast<uint32_t>(slice_lengths.size()));
  for (uint64_t length : slice_lengths) {
    hashes.push_back(Xxh3(part.subspan(at, length)));
    at += length;
  }
  WriteHeader(part, codec, rect, block_tokens, slice_lengths, hashes, selected);
}

void WriteHeader(std::span<std::byte> header, Codec codec, const PartRect& rect,
                 uint16_t block_tokens, std::span<const uint64_t> slice_lengths,
                 std::span<const uint64_t> slice_xxh3, bool selected) {
  CAIRN_CHECK(rect.layer_begin < rect.layer_end && rect.head_begin < rect.head_end);
  CAIRN_CHECK(slice_lengths.size() == size_t{rect.layer_end} - rect.layer_begin);
  CAIRN_CHECK(slice_xxh3.size() == slice_lengths.size());
  const auto slices = static_cast<uint32_t>(slice_lengths.size());
  const uint32_t header_bytes = HeaderBytes(slices);
  CAIRN_CHECK(header.size() >= header_bytes);
  header = header.first(header_bytes);

  std::memset(header.data(), 0, header.size());
  std::memcpy(header.data(), kMagic, sizeof(kMagic));
  Store<uint32_t>(header, kHeaderBytesAt, header_bytes);
  Store<uint16_t>(header, kVersionAt, kPartVersion);
  Store<uint16_t>(header, kCodecAt, static_cast<uint16_t>(codec));
  Store<uint16_t>(header, kLayerBeginAt, rect.layer_begin);
  Store<uint16_t>(header, kLayerEndAt, rect.layer_end);
  Store<uint16_t>(header, kHeadBeginAt, rect.head_begin);
  Store<uint16_t>(header, kHeadEndAt, rect.head_end);
  Store<uint16_t>(header, kBlockTokensAt, block_tokens);
  Store<uint16_t>(header, kFlagsAt, selected ? kSelectedFlag : 0);
  Store<uint32_t>(header, kSliceCountAt, slices);
  uint64_t offset = header_bytes;
  for (uint32_t i = 0; i < slices; ++i) {
    const size_t at = kFixedBytes + kEntryBytes * i;
    Store<uint64_t>(header, at, offset);
    Store<uint64_t>(header, at + 8, slice_lengths[i]);
    Store<uint64_t>(header, at + 16, slice_xxh3[i]);
    offset += slice_lengths[i];
  }
  Store<uint64_t>(header, kTotalBytesAt, offset);
  Store<uint64_t>(header, kHashAt, Xxh3(header));
}

namespace {

// The slices of `rect`, from a header whose hash is right: they follow each other without gaps from
// `begin` to `total_bytes`.
Result<std::vector<SliceEntry>> ParseSliceTable(std::span<const std::byte> head,
                                                const PartRect& rect, uint64_t begin,
                                                uint64_t total_bytes) {
  std::vector<SliceEntry> slices;
  slices.reserve(static_cast<size_t>(rect.layer_end - rect.layer_begin));
  uint64_t expected = begin;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    const size_t at = kFixedBytes + kEntryBytes * size_t{layer - rect.layer_begin};
    const SliceEntry entry{Load<uint64_t>(head, at), Load<uint64_t>(head, at + 8),
                           Load<uint64_t>(head, at + 16)};
    if (entry.offset != expected) {
      return Damaged("slice of layer {}: offset {}, expected {}", layer, entry.offset, expected);
    }
    // Compared by subtraction, since a sum could wrap.
    if (expected > total_bytes || entry.length > total_bytes - expected) {
      return Damaged("slice of layer {}: {} bytes at {} reach beyond total_bytes {}", layer,
                     entry.length, entry.offset, total_bytes);
    }
    expected += entry.length;
    slices.push_back(entry);
  }
  if (expected != total_bytes) {
    return Damaged("total_bytes: got {}, the slices end at {}", total_bytes, expected);
  }
  return slices;
}

}  // namespace

Result<PartHeader> ParseHeader(std::span<const std::byte> part) {
  if (part.size() < kFixedBytes) {
    return Damaged("got {} bytes, a header has at least {}", part.size(), kFixedBytes);
  }
  if (std::memcmp(part.data(), kMagic, sizeof(kMagic)) != 0) {
    return Damaged("bytes 0 to 7 are not the magic CAIRNPT1");
  }
  const auto version = Load<uint16_t>(part, kVersionAt);
  if (version != kPartVersion) {
    return Damaged("version: got {}, expected {}", version, kPartVersion);
  }
  const auto slices = Load<uint32_t>(part, kSliceCountAt);
  PartHeader header;
  header.rect = {Load<uint16_t>(part, kLayerBeginAt), Load<uint16_t>(part, kLayerEndAt),
                 Load<uint16_t>(part, kHeadBeginAt), Load<uint16_t>(part, kHeadEndAt)};
  const PartRect& rect = header.rect;
  if (rect.layer_begin >= rect.layer_end || rect.head_begin >= rect.head_end) {
    return Damaged("layers [{}, {}) x heads [{}, {}) is empty", rect.layer_begin, rect.layer_end,
                   rect.head_begin, rect.head_end);
  }
  if (slices != uint32_t{rect.layer_end} - rect.layer_begin) {
    return Damaged("slice_count: got {}, expected {} for layers [{}, {})", slices,
                   rect.layer_end - rect.layer_begin, rect.layer_begin, rect.layer_end);
  }
  const auto header_bytes = Load<uint32_t>(part, kHeaderBytesAt);
  if (header_bytes != HeaderBytes(slices)) {
    return Damaged("header_bytes: got {}, expected {} for {} slices", header_bytes,
                   HeaderBytes(slices), slices);
  }
  if (part.size() < header_bytes) {
    return Damaged("got {} bytes, the header has {}", part.size(), header_bytes);
  }
  // The rest looks at a copy: another process may still write to the part, and what was hashed must
  // be what is used. At most 1.5 MiB (65535 layers), and small as a rule.
  std::vector<std::byte> head(part.begin(), part.begin() + header_bytes);
  const auto hash = Load<uint64_t>(head, kHashAt);
  Store<uint64_t>(head, kHashAt, 0);
  if (Xxh3(head) != hash) return Damaged("header hash is wrong");
  const PartRect copied = {Load<uint16_t>(head, kLayerBeginAt), Load<uint16_t>(head, kLayerEndAt),
                           Load<uint16_t>(head, kHeadBeginAt), Load<uint16_t>(head, kHeadEndAt)};
  if (copied != rect || Load<uint32_t>(head, kSliceCountAt) != slices ||
      Load<uint32_t>(head, kHeaderBytesAt) != header_bytes) {
    return Damaged("header changed while it was read");
  }

  // From here on, an error is not damage: the writer broke the format.
  const auto codec = Load<uint16_t>(head, kCodecAt);
  if (codec > static_cast<uint16_t>(kLastCodec)) return Damaged("codec: got {}, unknown", codec);
  header.codec = static_cast<Codec>(codec);
  const size_t table_end = kFixedBytes + kEntryBytes * size_t{slices};
  const auto flags = Load<uint16_t>(head, kFlagsAt);
  if ((flags & ~kSelectedFlag) != 0) return Damaged("flags: got {}, expected 0 or 1", flags);
  header.selected = (flags & kSelectedFlag) != 0;
  if (!AllZero(std::span(head).subspan(kReservedAt, kFixedBytes - kReservedAt)) ||
      !AllZero(std::span(head).subspan(table_end))) {
    return Damaged("reserved bytes of the header are not 0");
  }
  header.block_tokens = Load<uint16_t>(head, kBlockTokensAt);
  header.total_bytes = Load<uint64_t>(head, kTotalBytesAt);
  CAIRN_ASSIGN_OR_RETURN(header.slices,
                         ParseSliceTable(head, rect, header_bytes, header.total_bytes));
  return header;
}

std::optional<SliceEntry> SliceEntryAt(std::span<const std::byte> header, uint32_t slice) {
  const size_t at = kFixedBytes + kEntryBytes * size_t{slice};
  if (header.size() < at + kEntryBytes) return std::nullopt;
  return SliceEntry{Load<uint64_t>(header, at), Load<uint64_t>(header, at + 8),
                    Load<uint64_t>(header, at + 16)};
}

std::optional<SliceEntry> SliceAt(std::span<const std::byte> part, uint32_t slice) {
  const std::optional<SliceEntry> entry = SliceEntryAt(part, slice);
  if (!entry || entry->offset > part.size() || entry->length > part.size() - entry->offset) {
    return std::nullopt;
  }
  return entry;
}

bool VerifySlice(const SliceEntry& entry, std::span<const std::byte> slice) {
  return slice.size() == entry.length && Xxh3(slice) == entry.xxh3;
}

Result<PartHeader> VerifyPart(std::span<const std::byte> part) {
  CAIRN_ASSIGN_OR_RETURN(PartHeader header, ParseHeader(part));
  if (header.total_bytes != part.size()) {
    return Damaged("got {} bytes, total_bytes says {}", part.size(), header.total_bytes);
  }
  for (size_t i = 0; i < header.slices.size(); ++i) {
    const SliceEntry& entry = header.slices[i];
    if (!VerifySlice(entry, part.subspan(entry.offset, entry.length))) {
      return Damaged("slice of layer {}: hash is wrong", header.rect.layer_begin + i);
    }
  }
  return header;
}

}  // namespace cairn::format
