// Any bytes as a message of the same-node socket, and as what the node writes into a ring: an
// error, or values within their bounds.
//
// First byte: bits 0 to 2 the type that the header is made to say (0: as it is), bit 3 the message
// is cut or filled up to the length of its type, bit 4 adds 7 to the type. Second byte: the
// descriptors that came with it.
// The rest is the message.

#include <algorithm>
#include <cstring>

#include "protocol/shm/decode.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using namespace cairn::shm;
using fuzz::Expect;

constexpr uint64_t kSegmentBytes = 1 << 20;

void ReadMessage(const std::vector<std::byte>& message, size_t descriptors) {
  const auto type = TypeOf(message);
  const auto hello = DecodeHello(message);
  const auto welcome = DecodeWelcome(message, descriptors);
  const auto segments = DecodeSegments(message, descriptors);
  const auto devices = DecodeDevices(message);
  const auto chunks = DecodeChunks(message, descriptors);
  Expect(type.ok() ||
         (!hello.ok() && !welcome.ok() && !segments.ok() && !devices.ok() && !chunks.ok()));
  if (devices.ok()) {
    Expect(*type == MessageType::kDevices && !devices->empty());
    Expect(devices->size() <= kMaxDevicesPerMessage);
    for (const std::string& uuid : *devices) Expect(!uuid.empty() && uuid.size() < 48);
  }
  if (chunks.ok()) {
    Expect(*type == MessageType::kChunks && chunks->count == descriptors);
    for (uint32_t i = 0; i < chunks->count; ++i) {
      Expect(chunks->entries[i].id != 0 && chunks->entries[i].bytes % 4096 == 0);
    }
  }
  if (hello.ok()) {
    Expect(*type == MessageType::kHello && hello->token.size() == 16);
    Expect(hello->client.size() <= sizeof(Hello::client) && hello->tenant.size() <= 128);
    for (const char c : hello->tenant) Expect(c >= 0x20 && c != 0x7f);
  }
  if (welcome.ok()) {
    Expect(*type == MessageType::kWelcome && welcome->code == 0 && descriptors == 1);
    Expect(RingShape{welcome->entries, welcome->scratch_bytes}.valid());
  }
  if (segments.ok()) {
    Expect(*type == MessageType::kSegments && segments->count == descriptors);
    Expect(segments->count >= 1 && segments->count <= kMaxSegmentsPerMessage);
    for (uint32_t i = 0; i < segments->count; ++i) Expect(segments->entries[i].id != 0);
  }
  if (!type.ok()) return;
  Expect(message.size() == MessageBytes(*type));
  if (*type == MessageType::kClosing) (void)Text(As<Closing>(message).text);
  if (*type == MessageType::kWelcome) (void)Text(As<Welcome>(message).text);
}

template <typename T>
T Take(const std::vector<std::byte>& bytes) {
  T value{};
  if (!bytes.empty()) {
    std::memcpy(static_cast<void*>(&value), bytes.data(), std::min(bytes.size(), sizeof(value)));
  }
  return value;
}

void ReadEntries(const std::vector<std::byte>& bytes) {
  const auto place = Take<PlaceEntry>(bytes);
  if (CheckPlace(place, kSegmentBytes).ok()) {
    Expect(place.layer_begin < place.layer_end || place.state != 0);
    if (place.state == static_cast<uint8_t>(PlaceState::kHere)) {
      Expect(place.offset <= kSegmentBytes && place.bytes <= kSegmentBytes - place.offset);
    }
  }
  const auto grant = Take<Grant>(bytes);
  if (grant.code == 0 && CheckGrant(grant, 4096, kSegmentBytes).ok()) {
    Expect(grant.offset <= kSegmentBytes - 4096 && grant.reservation != 0);
  }
}

}  // namespace

CAIRN_FUZZ_ENTRY(local_message)(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t mode = input.U8();
  const size_t descriptors = input.U8() % 40;
  std::vector<std::byte> message = fuzz::Copy(input.Rest());
  ReadEntries(message);
  if ((mode & 7) != 0) {
    const MessageHeader header{.type =
                                   static_cast<uint16_t>((mode & 7) + ((mode & 16) != 0 ? 7 : 0))};
    if ((mode & 8) != 0) {
      message.resize(std::max(sizeof(header), MessageBytes(static_cast<MessageType>(header.type))));
    }
    if (message.size() >= sizeof(header)) std::memcpy(message.data(), &header, sizeof(header));
  }
  ReadMessage(message, descriptors);
  return 0;
}
