#include "clients/cpp/src/local/local_session.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "protocol/shm/decode.h"

namespace cairn::client::local {
namespace {

static_assert(sizeof(BlockKey) == shm::kKeyBytes);
// Ids given back in one descriptor; bounded so that they fit next to other calls.
constexpr size_t kIdsAtOnce = 128;
constexpr uint32_t kPollEvery = 256;  // Calls.
constexpr uint32_t kTextBytes = 256;  // Room for the text of an error.

template <typename T>
std::span<const std::byte> InputOf(std::span<const T> entries) {
  return std::as_bytes(entries);
}

std::span<const std::byte> BodyOf(const Digest& fingerprint) {
  return std::as_bytes(std::span(fingerprint.bytes));
}

// Reads `count` entries from an answer's output: shm::Check has compared that number with the size.
template <typename T>
std::vector<T> EntriesOf(const RingChannel::Answer& answer) {
  const size_t count = std::min<size_t>(answer.completion.count, answer.output.size() / sizeof(T));
  std::vector<T> entries(count);
  if (count > 0) std::memcpy(entries.data(), answer.output.data(), count * sizeof(T));
  return entries;
}

Status Damaged(const std::string& text) { return Status(StatusCode::kDataLoss, "node: " + text); }

// Parts of one block follow each other, and blocks come in order.
Status CheckOrder(std::span<const shm::PlaceEntry> places) {
  const auto unordered = std::adjacent_find(
      places.begin(), places.end(),
      [](const shm::PlaceEntry& a, const shm::PlaceEntry& b) { return a.block > b.block; });
  if (unordered == places.end()) return OkStatus();
  return Damaged(
      fmt::format("places of block {} after block {}", unordered[1].block, unordered->block));
}

TierKind TierOf(uint8_t code) { return TierFromCode(code).value_or(TierKind::kHost); }

// The matched prefix as runs. Blocks beyond the places belong to the last run.
std::vector<TierRun> RunsOf(std::span<const shm::PlaceEntry> places, uint32_t located,
                            const MatchOutcome& outcome) {
  std::vector<TierRun> runs;
  std::optional<uint32_t> last;
  uint32_t blocks = 0;
  uint64_t bytes = 0;
  for (const shm::PlaceEntry& place : places) {
    if (place.block >= located) break;
    const TierKind tier = TierOf(place.tier);
    if (last != place.block) {
      if (runs.empty() || runs.back().tier != tier) runs.push_back({.tier = tier});
      ++runs.back().blocks;
      ++blocks;
      last = place.block;
    }
    runs.back().bytes += place.bytes;
    bytes += place.bytes;
  }
  if (blocks < outcome.matched_blocks) {
    if (runs.empty()) runs.push_back({.tier = TierKind::kHost});
    runs.back().blocks += outcome.matched_blocks - blocks;
    runs.back().bytes += outcome.bytes - std::min(bytes, outcome.bytes);
  }
  return runs;
}

}  // namespace

LeasePin::~LeasePin() { session_->Release(lease_); }

Result<std::shared_ptr<LocalSession>> LocalSession::Open(const Options& options, const Clock* clock,
                                                         TimePoint deadline) {
  CAIRN_ASSIGN_OR_RETURN(shm::Descriptor socket, shm::Dial(options.socket));
  shm::Hello hello;
  hello.header.type = static_cast<uint16_t>(shm::MessageType::kHello);
  if (options.token.size() != sizeof(hello.token)) {
    return Damaged(fmt::format("a token of {} bytes", options.token.size()));
  }
  std::memcpy(hello.token, options.token.data(), sizeof(hello.token));
  shm::SetText(hello.tenant, options.tenant);
  shm::SetText(hello.client, options.client);
  CAIRN_RETURN_IF_ERROR(shm::Send(socket.get(), shm::AsBytes(hello)));

  CAIRN_ASSIGN_OR_RETURN(const shm::Received answer, shm::ReceiveBy(socket.get(), deadline));
  if (answer.message.empty()) {
    return Errorf(StatusCode::kUnavailable, "same-node session: the node hung up");
  }
  CAIRN_ASSIGN_OR_RETURN(const shm::Welcome welcome,
                         shm::DecodeWelcome(answer.message, answer.descriptors.size()));
  if (welcome.node_epoch != options.node_epoch) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "same-node session: '{}' belongs to a node of epoch {}, expected {}",
                  options.socket, welcome.node_epoch, options.node_epoch);
  }
  CAIRN_ASSIGN_OR_RETURN(
      shm::RingMemory memory,
      shm::RingMemory::Map(answer.descriptors[0].get(), {welcome.entries, welcome.scratch_bytes}));

  std::shared_ptr<LocalSession> session(new LocalSession(clock));
  session->welcome_ = welcome;
  // The channel is the session's own, and its messages come inside the session's calls.
  session->channel_ = std::make_unique<RingChannel>(
      shm::ClientRing(std::move(memory)), std::move(socket), shm::SpinTime(options.spin), clock,
      [raw = session.get()](shm::Received message) { return raw->OnMessage(std::move(message)); });
  if (options.devices != nullptr && welcome.chunk_bytes != 0) {
    session->chunks_.emplace(options.devices);
    CAIRN_RETURN_IF_ERROR(session->channel_->SayDevices(options.devices->uuids()));
  }
  return session;
}

void LocalSession::Close() {
  channel_->Break(Errorf(StatusCode::kUnavailable, "closed by the client"));
}

Status LocalSession::OnMessage(shm::Received received) {
  CAIRN_ASSIGN_OR_RETURN(const shm::MessageType type, shm::TypeOf(received.message));
  switch (type) {
    case shm::MessageType::kSegments: {
      CAIRN_ASSIGN_OR_RETURN(const shm::Segments segments,
                             shm::DecodeSegments(received.message, received.descriptors.size()));
      for (uint32_t i = 0; i < segments.count; ++i) {
        CAIRN_RETURN_IF_ERROR(segments_.Add(segments.entries[i], received.descriptors[i].get()));
      }
      return OkStatus();
    }
    case shm::MessageType::kGone: {
      const auto gone = shm::As<shm::Gone>(received.message);
      if (gone.count > shm::kMaxSegmentsPerMessage) {
        return Damaged(fmt::format("{} segments gone in one message", gone.count));
      }
      for (uint32_t i = 0; i < gone.count; ++i) segments_.Remove(gone.ids[i]);
      return OkStatus();
    }
    case shm::MessageType::kChunks:
      return OnChunks(received);
    case shm::MessageType::kClosing: {
      const auto closing = shm::As<shm::Closing>(received.message);
      return Errorf(StatusCode::kUnavailable, "the node closed it: {}", shm::Text(closing.text));
    }
    default:
      return Damaged(fmt::format("message of type {}", static_cast<int>(type)));
  }
}

Status LocalSession::OnChunks(const shm::Received& received) {
  CAIRN_ASSIGN_OR_RETURN(const shm::Chunks chunks,
                         shm::DecodeChunks(received.message, received.descriptors.size()));
  if (!chunks_) return Damaged("chunks for a client that said no Devices");
  for (uint32_t i = 0; i < chunks.count; ++i) {
    CAIRN_RETURN_IF_ERROR(chunks_->Add(chunks.entries[i], received.descriptors[i].get()));
  }
  return OkStatus();
}

Result<std::shared_ptr<const DeviceChunk>> LocalSession::ChunkOf(const shm::PlaceEntry& place) {
  if (!chunks_) return Damaged("a place on a GPU for a client that said no Devices");
  std::optional<ChunkMap::Found> found = chunks_->Find(place.segment);
  if (!found) {
    // Its message was sent before the answer that names it.
    channel_->Poll();
    found = chunks_->Find(place.segment);
  }
  if (!found) return Damaged(fmt::format("unknown chunk {}", place.segment));
  CAIRN_RETURN_IF_ERROR(shm::CheckPlace(place, found->bytes));
  return found->chunk;
}

Result<std::shared_ptr<const ArenaSegment>> LocalSession::FindSegment(uint32_t id) {
  std::shared_ptr<const ArenaSegment> segment = segments_.Find(id);
  if (segment == nullptr) {
    // Its message was sent before the answer that names it.
    channel_->Poll();
    segment = segments_.Find(id);
  }
  if (segment == nullptr) return Damaged(fmt::format("unknown segment {}", id));
  return segment;
}

Result<std::shared_ptr<const ArenaSegment>> LocalSession::SegmentOf(const shm::PlaceEntry& place) {
  if ((place.flags & shm::kOnDevice) != 0) return Damaged("a place on a GPU, expected a segment");
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<const ArenaSegment> segment, FindSegment(place.segment));
  CAIRN_RETURN_IF_ERROR(shm::CheckPlace(place, segment->bytes()));
  return segment;
}

Result<LocalSession::Matched> LocalSession::Match(const Digest& fingerprint,
                                                  std::span<const BlockKey> keys,
                                                  const MatchOptions& options, TimePoint deadline) {
  RingChannel::Request request;
  request.op = shm::Op::kMatch;
  request.input = InputOf(keys);
  request.body = BodyOf(fingerprint);
  request.argument = std::bit_cast<uint32_t>(static_cast<float>(options.prefill_tokens_per_second));
  request.output_bytes = kTextBytes;
  if (!options.lease) {
    request.flags = shm::kNoLease;
  } else {
    request.flags = shm::kPlaces;
    // Blocks of one part are answered whole; for more parts, or a scratch in use, Fetch asks again.
    const uint64_t input = InputOf(keys).size();
    const uint64_t left =
        channel_->scratch_bytes() - std::min<uint64_t>(input, channel_->scratch_bytes());
    const uint64_t wanted = std::min<uint64_t>(keys.size() * sizeof(shm::PlaceEntry), left / 2);
    request.output_bytes = static_cast<uint32_t>(std::max<uint64_t>(wanted / 64 * 64, kTextBytes));
  }
  const uint8_t flags = request.flags;
  request.flags |= static_cast<uint8_t>(static_cast<int>(options.next) << shm::kNextUseShift);
  request.undo = UndoOfLease();
  auto answered = Run(request, deadline);
  // An older node does not know the hint.
  if (flags != request.flags && answered.status().code() == StatusCode::kInvalidArgument) {
    request.flags = flags;
    answered = Run(request, deadline);
  }
  CAIRN_ASSIGN_OR_RETURN(const RingChannel::Answer answer, std::move(answered));
  const shm::Completion& completion = answer.completion;

  Matched matched;
  MatchOutcome& outcome = matched.outcome;
  std::vector<shm::PlaceEntry> places;
  if ((request.flags & shm::kPlaces) != 0) {
    places = EntriesOf<shm::PlaceEntry>(answer);
    if (const Status order = CheckOrder(places); !order.ok()) {
      if (completion.lease != 0) Release(completion.lease);
      return order;
    }
  }
  outcome.matched_blocks = completion.matched;
  outcome.miss_reason = static_cast<MissReason>(completion.miss_reason);
  outcome.bytes = completion.bytes;
  outcome.estimated_fetch_seconds = completion.estimated_seconds;
  outcome.tiers = RunsOf(places, completion.located, outcome);
  if (completion.lease != 0) {
    matched.pin = std::make_shared<LeasePin>(shared_from_this(), completion.lease,
                                             std::move(places), completion.located);
  }
  return matched;
}

Result<LocalSession::Matched> LocalSession::MatchPools(const Digest& fingerprint,
                                                       std::span<const BlockKey> keys,
                                                       const MatchOptions& options,
                                                       TimePoint deadline) {
  static_assert(kMaxPools == shm::kMaxPoolEntries);  // CheckPools.
  const JointQuestion& joint = options.joint;
  shm::PoolQuestion question{.most_tokens = joint.most_tokens,
                             .step_tokens = joint.step_tokens,
                             .pools = static_cast<uint32_t>(joint.pools.size()),
                             .all = joint.all ? 1u : 0u};
  for (size_t i = 0; i < joint.pools.size(); ++i) {
    question.entries[i] = {.pool = joint.pools[i].pool,
                           .tail_tokens = joint.pools[i].tail_tokens,
                           .proof_blocks = joint.pools[i].proof_blocks};
  }
  std::vector<std::byte> input(sizeof(question) + keys.size_bytes());
  std::memcpy(input.data(), &question, sizeof(question));
  std::memcpy(input.data() + sizeof(question), keys.data(), keys.size_bytes());
  RingChannel::Request request;
  request.op = shm::Op::kMatchPools;
  request.flags = static_cast<uint8_t>((options.lease ? 0 : shm::kNoLease) |
                                       static_cast<int>(options.next) << shm::kNextUseShift);
  request.input = input;
  request.body = BodyOf(fingerprint);
  request.argument = std::bit_cast<uint32_t>(static_cast<float>(options.prefill_tokens_per_second));
  // A step is a unit at least, so there are no more lengths than keys.
  request.output_bytes = static_cast<uint32_t>(sizeof(shm::PoolAnswer) + keys.size() / 64 * 8 + 8);
  request.undo = UndoOfLease();
  CAIRN_ASSIGN_OR_RETURN(const RingChannel::Answer answer, Run(request, deadline));
  const shm::Completion& completion = answer.completion;
  Matched matched;
  MatchOutcome& outcome = matched.outcome;
  Result<JointAnswer> decoded = shm::DecodeAnswer(EntriesOf<std::byte>(answer), completion.matched);
  if (!decoded.ok()) {
    if (completion.lease != 0) Release(completion.lease);
    return decoded.status();
  }
  outcome.joint = *std::move(decoded);
  outcome.matched_blocks = completion.matched;
  outcome.miss_reason = static_cast<MissReason>(completion.miss_reason);
  outcome.bytes = completion.bytes;
  outcome.estimated_fetch_seconds = completion.estimated_seconds;
  outcome.tiers = RunsOf({}, 0, outcome);
  if (completion.lease != 0) {
    matched.pin = std::make_shared<LeasePin>(shared_from_this(), completion.lease,
                                             std::vector<shm::PlaceEntry>(), 0);
  }
  return matched;
}

// The session cannot hold itself in its own slots; the channel ends with it.
std::function<void(const shm::Completion&, std::span<const std::byte>)>
LocalSession::UndoOfLease() {
  return [this](const shm::Completion& completion, std::span<const std::byte>) {
    if (completion.lease == 0) return;
    MutexLock lock(mu_);
    leases_.push_back(completion.lease);
    owes_.store(true);
  };
}

Result<std::vector<std::optional<TierKind>>> LocalSession::Exists(const Digest& fingerprint,
                                                                  std::span<const BlockKey> keys,
                                                                  TimePoint deadline) {
  std::vector<std::optional<TierKind>> tiers;
  tiers.reserve(keys.size());
  // Half of the scratch at a time, so that other calls find room.
  const size_t at_once = std::max<size_t>(1, channel_->scratch_bytes() / 2 / (shm::kKeyBytes + 1));
  while (!keys.empty()) {
    const auto some = keys.first(std::min(keys.size(), at_once));
    keys = keys.subspan(some.size());
    RingChannel::Request request;
    request.op = shm::Op::kExists;
    request.input = InputOf(some);
    request.output_bytes = std::max<uint32_t>(static_cast<uint32_t>(some.size()), kTextBytes);
    request.body = BodyOf(fingerprint);
    CAIRN_ASSIGN_OR_RETURN(const RingChannel::Answer answer, Run(request, deadline));
    const auto bytes = EntriesOf<uint8_t>(answer);
    if (bytes.size() != some.size()) {
      return Damaged(fmt::format("{} answers for {} keys", bytes.size(), some.size()));
    }
    for (const uint8_t code : bytes) tiers.push_back(TierFromCode(code));
  }
  return tiers;
}

Status LocalSession::Renew(uint64_t lease, TimePoint deadline) {
  RingChannel::Request request;
  request.op = shm::Op::kRenew;
  const shm::LocateBody body{.lease = lease};
  request.body = std::as_bytes(std::span(&body, 1));
  request.output_bytes = kTextBytes;
  return Run(request, deadline).status();
}

Result<LocalSession::Located> LocalSession::Locate(uint64_t lease, uint32_t begin, uint32_t end,
                                                   Duration wait, TimePoint deadline) {
  RingChannel::Request request;
  request.op = shm::Op::kLocate;
  const shm::LocateBody body{.lease = lease, .block_begin = begin, .block_end = end};
  request.body = std::as_bytes(std::span(&body, 1));
  request.argument = static_cast<uint32_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(wait).count()));
  // A few parts per block; what does not fit is asked for again.
  const uint64_t wanted = uint64_t{end - begin} * 4 * sizeof(shm::PlaceEntry);
  request.output_bytes = static_cast<uint32_t>(
      std::clamp<uint64_t>(wanted, kTextBytes, channel_->scratch_bytes() / 4));
  CAIRN_ASSIGN_OR_RETURN(const RingChannel::Answer answer, Run(request, deadline));
  Located located{EntriesOf<shm::PlaceEntry>(answer), answer.completion.located};
  CAIRN_RETURN_IF_ERROR(CheckOrder(located.places));
  if (located.located == 0 || located.located > end - begin) {
    return Errorf(StatusCode::kResourceExhausted,
                  "same-node session: {} of {} blocks located in {} bytes", located.located,
                  end - begin, request.output_bytes);
  }
  return located;
}

Result<std::vector<Room>> LocalSession::Reserve(const Digest& fingerprint,
                                                std::span<const PartToWrite> parts,
                                                TimePoint deadline) {
  std::vector<Room> rooms;
  rooms.reserve(parts.size());
  const size_t at_once = std::max<size_t>(
      1, channel_->scratch_bytes() / 2 / (sizeof(shm::ReserveEntry) + sizeof(shm::Grant)));
  while (rooms.size() < parts.size()) {
    const auto some = parts.subspan(rooms.size(), std::min(parts.size() - rooms.size(), at_once));
    std::vector<shm::ReserveEntry> entries(some.size());
    for (size_t i = 0; i < some.size(); ++i) {
      const PartToWrite& part = some[i];
      shm::ReserveEntry& entry = entries[i];
      std::memcpy(entry.key, part.key.bytes.data(), sizeof(entry.key));
      if (part.parent) std::memcpy(entry.parent, part.parent->bytes.data(), sizeof(entry.parent));
      entry.has_parent = part.parent ? 1 : 0;
      entry.first_position = part.first_position;
      entry.bytes = part.bytes;
      entry.compute_seconds = part.compute_seconds;
      entry.layer_begin = part.rect.layer_begin;
      entry.layer_end = part.rect.layer_end;
      entry.head_begin = part.rect.head_begin;
      entry.head_end = part.rect.head_end;
    }
    RingChannel::Request request;
    request.op = shm::Op::kReserve;
    request.input = InputOf(std::span<const shm::ReserveEntry>(entries));
    request.output_bytes =
        std::max<uint32_t>(static_cast<uint32_t>(some.size() * sizeof(shm::Grant)), kTextBytes);
    request.body = BodyOf(fingerprint);
    request.undo = [this, count = some.size()](const shm::Completion& completion,
                                               std::span<const std::byte> output) {
      MutexLock lock(mu_);
      for (size_t i = 0; i < std::min<size_t>(count, completion.count); ++i) {
        shm::Grant grant;
        std::memcpy(&grant, output.data() + i * sizeof(grant), sizeof(grant));
        if (grant.code == 0) reservations_.push_back(grant.reservation);
      }
      owes_.store(true);
    };
    const Result<RingChannel::Answer> answer = Run(request, deadline);
    Status status = answer.status();
    const auto grants = answer.ok() ? EntriesOf<shm::Grant>(*answer) : std::vector<shm::Grant>();
    if (status.ok() && grants.size() != some.size()) {
      status = Damaged(fmt::format("{} grants for {} parts", grants.size(), some.size()));
    }
    for (size_t i = 0; i < grants.size() && status.ok(); ++i) {
      const shm::Grant& grant = grants[i];
      Room room;
      if (grant.code != 0) {
        room.status = Status(static_cast<StatusCode>(std::min<uint8_t>(grant.code, 16)),
                             "same-node session: the node gives no room for the part");
      } else {
        room.reservation = grant.reservation;
        auto segment = FindSegment(grant.segment);
        status = segment.status();
        if (segment.ok()) status = shm::CheckGrant(grant, some[i].bytes, (*segment)->bytes());
        if (status.ok() && !(*segment)->writable()) {
          status =
              Damaged(fmt::format("grant in segment {}, which is not writable", grant.segment));
        }
        if (status.ok()) {
          room.segment = std::move(*segment);
          room.bytes = room.segment->Write(grant.offset, some[i].bytes);
        }
      }
      rooms.push_back(std::move(room));
    }
    if (!status.ok()) {
      std::vector<uint64_t> given;
      for (const Room& room : rooms) {
        if (room.reservation != 0) given.push_back(room.reservation);
      }
      Abort(given);
      return status;
    }
  }
  return rooms;
}

Result<std::vector<Status>> LocalSession::Commit(std::span<const uint64_t> reservations,
                                                 TimePoint deadline) {
  std::vector<Status> results;
  results.reserve(reservations.size());
  const size_t at_once =
      std::max<size_t>(1, channel_->scratch_bytes() / 2 / (sizeof(uint64_t) + 1));
  while (results.size() < reservations.size()) {
    const auto some = reservations.subspan(results.size(),
                                           std::min(reservations.size() - results.size(), at_once));
    RingChannel::Request request;
    request.op = shm::Op::kCommit;
    request.input = InputOf(some);
    request.output_bytes = std::max<uint32_t>(static_cast<uint32_t>(some.size()), kTextBytes);
    CAIRN_ASSIGN_OR_RETURN(const RingChannel::Answer answer, Run(request, deadline));
    const auto codes = EntriesOf<uint8_t>(answer);
    if (codes.size() != some.size()) {
      return Damaged(fmt::format("{} results for {} commits", codes.size(), some.size()));
    }
    for (const uint8_t code : codes) {
      results.push_back(code == 0 ? OkStatus()
                                  : Status(static_cast<StatusCode>(std::min<uint8_t>(code, 16)),
                                           "same-node session: the node refused the part"));
    }
  }
  return results;
}

Result<RingChannel::Answer> LocalSession::Run(const RingChannel::Request& request,
                                              TimePoint deadline) {
  if (owes_.load(std::memory_order_relaxed)) GiveBack();
  // Messages that no answer refers to: segments that are gone.
  if (calls_.fetch_add(1, std::memory_order_relaxed) % kPollEvery == kPollEvery - 1) {
    channel_->Poll();
  }
  Result<RingChannel::Answer> answer = channel_->Run(request, deadline);
  // Others may have found no room while this call had it.
  if (owes_.load(std::memory_order_relaxed)) GiveBack();
  return answer;
}

void LocalSession::Release(uint64_t lease) {
  {
    MutexLock lock(mu_);
    leases_.push_back(lease);
  }
  GiveBack();
}

void LocalSession::Abort(std::span<const uint64_t> reservations) {
  if (reservations.empty()) return;
  {
    MutexLock lock(mu_);
    reservations_.insert(reservations_.end(), reservations.begin(), reservations.end());
  }
  GiveBack();
}

void LocalSession::GiveBack() {
  owes_.store(false);
  const auto give = [&](shm::Op op) {
    for (;;) {
      std::vector<uint64_t> ids;
      {
        MutexLock lock(mu_);
        std::vector<uint64_t>& from = Owed(op);
        const size_t count = std::min(from.size(), kIdsAtOnce);
        ids.assign(from.end() - static_cast<std::ptrdiff_t>(count), from.end());
        from.resize(from.size() - count);
      }
      if (ids.empty()) return;
      RingChannel::Request request;
      request.op = op;
      request.input = InputOf(std::span<const uint64_t>(ids));
      if (channel_->Post(request)) continue;
      // With a session that is over, the socket's end gives everything back.
      if (!channel_->broken().ok()) return;
      MutexLock lock(mu_);
      std::vector<uint64_t>& from = Owed(op);
      from.insert(from.end(), ids.begin(), ids.end());
      owes_.store(true);
      return;
    }
  };
  give(shm::Op::kRelease);
  give(shm::Op::kAbort);
}

void LocalSession::Report(uint64_t lease, uint32_t block) {
  RingChannel::Request request;
  request.op = shm::Op::kReport;
  const shm::LocateBody body{.lease = lease, .block_begin = block, .block_end = block + 1};
  request.body = std::as_bytes(std::span(&body, 1));
  channel_->Post(request);
}

}  // namespace cairn::client::local
