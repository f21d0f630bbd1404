#include "services/cache/store/state/bump_record.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>

namespace cairn::cache {
namespace {

constexpr uint16_t kVersion = 1;
constexpr size_t kHeadBytes = 8, kHashBytes = 8, kSequenceDigits = 16;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are little-endian");
static_assert(sizeof(Bump) == 48, "bumps are stored as they lie");

uint64_t HashOfText(std::string_view bytes) { return Xxh3(std::as_bytes(std::span(bytes))); }

template <typename T>
T Get(std::string_view in, size_t at) {
  T value;
  std::memcpy(&value, in.data() + at, sizeof(value));
  return value;
}

}  // namespace

std::string BumpMetaName(uint64_t sequence) {
  return fmt::format("{}{:016x}", kBumpMetaPrefix, sequence);
}

std::optional<uint64_t> BumpSequenceOf(std::string_view name) {
  if (!name.starts_with(kBumpMetaPrefix)) return std::nullopt;
  name.remove_prefix(kBumpMetaPrefix.size());
  uint64_t sequence = 0;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, sequence, 16);
  if (name.size() != kSequenceDigits || error != std::errc() || at != end) return std::nullopt;
  return sequence;
}

std::string EncodeBumps(std::span<const Bump> bumps) {
  std::string out(kHeadBytes, '\0');
  const auto count = static_cast<uint32_t>(bumps.size());
  std::memcpy(out.data(), &kVersion, sizeof(kVersion));
  std::memcpy(out.data() + 4, &count, sizeof(count));
  out.append(reinterpret_cast<const char*>(bumps.data()), bumps.size_bytes());
  const uint64_t hash = HashOfText(out);
  out.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  return out;
}

Result<std::vector<Bump>> DecodeBumps(std::string_view bytes) {
  if (bytes.size() < kHeadBytes + kHashBytes) {
    return Errorf(StatusCode::kDataLoss, "bump record: {} bytes", bytes.size());
  }
  const size_t body = bytes.size() - kHashBytes;
  if (Get<uint64_t>(bytes, body) != HashOfText(bytes.substr(0, body))) {
    return Errorf(StatusCode::kDataLoss, "bump record: bytes do not match their checksum");
  }
  if (const auto version = Get<uint16_t>(bytes, 0); version != kVersion) {
    return Errorf(StatusCode::kUnimplemented, "bump record: version {}, expected {}", version,
                  kVersion);
  }
  const auto count = Get<uint32_t>(bytes, 4);
  if (body != kHeadBytes + uint64_t{count} * sizeof(Bump)) {
    return Errorf(StatusCode::kDataLoss, "bump record: {} bytes, expected {} bumps", bytes.size(),
                  count);
  }
  std::vector<Bump> bumps(count);
  // Not from and to nowhere, which memcpy forbids even for no bytes.
  if (count > 0) std::memcpy(bumps.data(), bytes.data() + kHeadBytes, body - kHeadBytes);
  return bumps;
}

}  // namespace cairn::cache
