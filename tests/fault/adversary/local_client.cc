#include "tests/fault/adversary/local_client.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "protocol/shm/decode.h"

namespace cairn::fault {
namespace {

constexpr std::string_view kMarker = "CRNMARK:";
constexpr size_t kMarkerBytes = 16;
constexpr size_t kPage = 4096;

std::string TagOf(const std::string& tenant) {
  const uint64_t hash = std::hash<std::string>()(tenant);
  return {reinterpret_cast<const char*>(&hash), sizeof(hash)};
}

TimePoint In(std::chrono::milliseconds time) { return SteadyClock::Get().Now() + time; }

}  // namespace

std::string MarkedBytes(const std::string& tenant, size_t bytes) {
  const std::string marker = std::string(kMarker) + TagOf(tenant);
  std::string text;
  text.reserve(bytes + kMarkerBytes);
  while (text.size() < bytes) text += marker;
  text.resize(bytes);
  return text;
}

uint64_t CountForeignMarkers(std::span<const std::byte> memory, const std::string& tenant) {
  const std::string own = TagOf(tenant);
  uint64_t found = 0;
  const auto* at = reinterpret_cast<const char*>(memory.data());
  const char* const end = at + memory.size();
  while (static_cast<size_t>(end - at) >= kMarkerBytes) {
    const auto* hit =
        static_cast<const char*>(memmem(at, static_cast<size_t>(end - at), kMarker.data(), 8));
    if (hit == nullptr || static_cast<size_t>(end - hit) < kMarkerBytes) break;
    if (std::memcmp(hit + kMarker.size(), own.data(), own.size()) != 0) ++found;
    at = hit + kMarkerBytes;
  }
  return found;
}

bool IsMarked(const std::string& bytes, const std::string& tenant) {
  return bytes == MarkedBytes(tenant, bytes.size());
}

LocalClient::LocalClient(std::string tenant, shm::Descriptor socket, shm::RingMemory memory)
    : tenant_(std::move(tenant)),
      socket_(std::move(socket)),
      ring_base_(reinterpret_cast<std::byte*>(&memory.header())),
      ring_size_(memory.shape().bytes()),
      ring_(std::move(memory)) {}

LocalClient::~LocalClient() {
  for (const auto& [id, segment] : segments_) munmap(segment.memory.data(), segment.memory.size());
}

Result<std::unique_ptr<LocalClient>> LocalClient::Open(const v1::SessionEvent& session,
                                                       const std::string& tenant) {
  shm::Hello hello;
  hello.header.type = static_cast<uint16_t>(shm::MessageType::kHello);
  if (session.local_token().size() != sizeof(hello.token)) {
    return Errorf(StatusCode::kUnavailable, "the node offers no same-node path");
  }
  CAIRN_ASSIGN_OR_RETURN(shm::Descriptor socket, shm::Dial(session.local_socket()));
  std::memcpy(hello.token, session.local_token().data(), sizeof(hello.token));
  shm::SetText(hello.tenant, tenant);
  shm::SetText(hello.client, "hostile");
  CAIRN_RETURN_IF_ERROR(shm::Send(socket.get(), shm::AsBytes(hello)));
  CAIRN_ASSIGN_OR_RETURN(const shm::Received answer,
                         shm::ReceiveBy(socket.get(), In(std::chrono::seconds(5))));
  if (answer.message.empty()) return Errorf(StatusCode::kUnavailable, "the node hung up");
  CAIRN_ASSIGN_OR_RETURN(const shm::Welcome welcome,
                         shm::DecodeWelcome(answer.message, answer.descriptors.size()));
  CAIRN_ASSIGN_OR_RETURN(
      shm::RingMemory memory,
      shm::RingMemory::Map(answer.descriptors[0].get(), {welcome.entries, welcome.scratch_bytes}));
  std::unique_ptr<LocalClient> client(
      new LocalClient(tenant, std::move(socket), std::move(memory)));
  // The node sends what the tenant has right after its Welcome. The answer to a call comes behind
  // that: there is no such lease.
  shm::LocateBody body;
  body.lease = ~uint64_t{0};
  const std::string text(reinterpret_cast<const char*>(&body), sizeof(body));
  const auto first = client->Call(shm::Op::kRenew, 0, {}, 256, text);
  if (!first.ok() && first.status().code() != StatusCode::kNotFound) return first.status();
  return client;
}

Status LocalClient::Take(shm::Received received) {
  CAIRN_ASSIGN_OR_RETURN(const shm::MessageType type, shm::TypeOf(received.message));
  if (type == shm::MessageType::kClosing) {
    closed_ = Errorf(StatusCode::kUnavailable, "the node closed the session: {}",
                     shm::Text(shm::As<shm::Closing>(received.message).text));
  }
  CAIRN_ASSIGN_OR_RETURN(const shm::Segments segments,
                         shm::DecodeSegments(received.message, received.descriptors.size()));
  for (uint32_t i = 0; i < segments.count; ++i) {
    const shm::SegmentEntry& entry = segments.entries[i];
    const int protection = (entry.flags & shm::kWritable) != 0 ? PROT_READ | PROT_WRITE : PROT_READ;
    void* base =
        mmap(nullptr, entry.bytes, protection, MAP_SHARED, received.descriptors[i].get(), 0);
    if (base == MAP_FAILED) continue;
    segments_[entry.id] = {entry.flags,
                           {static_cast<std::byte*>(base), entry.bytes},
                           std::move(received.descriptors[i])};
  }
  return OkStatus();
}

void LocalClient::Poll() {
  for (;;) {
    auto received = shm::Receive(socket_.get());
    if (!received.ok() || received->message.empty()) return;
    (void)Take(*std::move(received));
  }
}

uint64_t LocalClient::ForeignMarkers() const {
  uint64_t found = 0;
  for (const auto& [id, segment] : segments_) found += CountForeignMarkers(segment.memory, tenant_);
  return found;
}

uint64_t LocalClient::HeldBytes(std::set<uint64_t>* counted) const {
  uint64_t bytes = 0;
  for (const auto& [id, segment] : segments_) {
    struct stat file {};
    if (fstat(segment.fd.get(), &file) != 0 || !counted->insert(file.st_ino).second) continue;
    bytes += static_cast<uint64_t>(file.st_blocks) * 512;
  }
  return bytes;
}

uint64_t LocalClient::FlipLentBytes(uint64_t first, uint64_t pages) {
  uint64_t flipped = 0;
  for (const auto& [id, segment] : segments_) {
    if ((segment.flags & shm::kWritable) == 0) continue;
    const uint64_t all = segment.memory.size() / kPage;
    for (uint64_t i = 0; i < pages; ++i) {
      // Behind the header of a part that begins with the page.
      volatile std::byte* byte = &segment.memory[(first + i) % all * kPage + 1024];
      *byte = *byte ^ std::byte{0x40};
      ++flipped;
    }
  }
  return flipped;
}

Result<LocalClient::Answer> LocalClient::Call(shm::Op op, uint8_t flags,
                                              std::span<const std::byte> input,
                                              uint32_t output_bytes, const std::string& body,
                                              uint32_t argument) {
  const size_t output_at = (input.size() + 63) / 64 * 64;
  if (output_at + output_bytes > ring_.scratch().size()) {
    return InvalidArgument("a call of {} + {} bytes does not fit into the scratch", input.size(),
                           output_bytes);
  }
  if (!input.empty()) std::memcpy(ring_.scratch().data(), input.data(), input.size());
  shm::Submission submission;
  submission.cookie = next_cookie_++;
  submission.op = static_cast<uint8_t>(op);
  submission.flags = flags;
  submission.argument = argument;
  submission.input = {0, static_cast<uint32_t>(input.size())};
  submission.output = {static_cast<uint32_t>(output_at), output_bytes};
  body.copy(reinterpret_cast<char*>(submission.body), sizeof(submission.body));
  Submit(submission);
  Answer answer;
  const TimePoint deadline = In(std::chrono::seconds(5));
  for (;;) {
    if (!closed_.ok()) return closed_;
    const shm::ClientRing::Reap reap = ring_.ReapOne(&answer.completion);
    if (reap == shm::ClientRing::Reap::kBroken) {
      return Errorf(StatusCode::kDataLoss, "the ring is broken");
    }
    if (reap == shm::ClientRing::Reap::kOne && answer.completion.cookie == submission.cookie) break;
    if (reap != shm::ClientRing::Reap::kNone) continue;
    // In short steps: a node that closes the session says so on the socket.
    const TimePoint next = In(std::chrono::milliseconds(50));
    if (ring_.Wait(Duration{0}, std::min(next, deadline))) continue;
    Poll();
    if (In({}) >= deadline) {
      return Errorf(StatusCode::kDeadlineExceeded, "no answer through the ring");
    }
  }
  Poll();
  const auto output = ring_.scratch().subspan(output_at, output_bytes);
  answer.output.assign(output.begin(), output.end());
  if (answer.completion.code != 0) {
    return Errorf(static_cast<StatusCode>(answer.completion.code), "{}",
                  shm::TextOf(answer.completion, ring_.scratch(), submission.output));
  }
  return answer;
}

Result<shm::Grant> LocalClient::Reserve(const std::string& fingerprint, const std::string& key,
                                        uint64_t bytes) {
  shm::ReserveEntry entry;
  key.copy(reinterpret_cast<char*>(entry.key), sizeof(entry.key));
  entry.bytes = bytes;
  entry.layer_end = 1;
  entry.head_end = 1;
  CAIRN_ASSIGN_OR_RETURN(const Answer answer,
                         Call(shm::Op::kReserve, 0, shm::AsBytes(entry), 256, fingerprint));
  shm::Grant grant;
  std::memcpy(&grant, answer.output.data(), sizeof(grant));
  if (grant.code != 0) {
    return Errorf(static_cast<StatusCode>(grant.code), "the room was refused");
  }
  return grant;
}

Status LocalClient::Squat(const std::string& fingerprint, const std::string& key, uint64_t bytes) {
  return Reserve(fingerprint, key, bytes).status();
}

Status LocalClient::StoreInPlace(const std::string& fingerprint, const std::string& key,
                                 const std::string& part) {
  CAIRN_ASSIGN_OR_RETURN(const shm::Grant grant, Reserve(fingerprint, key, part.size()));
  const auto segment = segments_.find(grant.segment);
  if (segment == segments_.end() || grant.offset + part.size() > segment->second.memory.size()) {
    return Errorf(StatusCode::kDataLoss, "a grant in a segment that did not come");
  }
  std::memcpy(segment->second.memory.data() + grant.offset, part.data(), part.size());
  CAIRN_ASSIGN_OR_RETURN(const Answer answer,
                         Call(shm::Op::kCommit, 0, shm::AsBytes(grant.reservation), 256));
  const auto code = static_cast<StatusCode>(answer.output[0]);
  return code == StatusCode::kOk ? OkStatus() : Errorf(code, "the commit was refused");
}

void LocalClient::Submit(const shm::Submission& submission) {
  if (!ring_.Submit(submission)) return;
  if (!ring_.MustRing()) return;
  shm::Doorbell doorbell;
  doorbell.header.type = static_cast<uint16_t>(shm::MessageType::kDoorbell);
  (void)shm::Send(socket_.get(), shm::AsBytes(doorbell));
}

std::span<std::byte> LocalClient::ring_bytes() { return {ring_base_, ring_size_}; }

}  // namespace cairn::fault
