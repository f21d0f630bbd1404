#include "services/cache/serve/local/local_server_session.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/log/log.h"
#include "services/cache/store/state/namespace_registry.h"

namespace cairn::cache {
namespace {

using shm::DecodedSubmission;
using shm::Op;

constexpr uint32_t kMaxWaitMs = 60'000;
constexpr Duration kFirstLook = std::chrono::microseconds(125);
constexpr int kLookFraction = 8;  // See RetryWaiting.
constexpr size_t kMaxKnownNamespaces = 1024;

shm::PlaceState StateOf(PlacedPart::State state) {
  switch (state) {
    case PlacedPart::State::kHost:
    case PlacedPart::State::kDevice:
      return shm::PlaceState::kHere;
    case PlacedPart::State::kPending:
      return shm::PlaceState::kPending;
    case PlacedPart::State::kSource:
      return shm::PlaceState::kElsewhere;
    case PlacedPart::State::kFailed:
      return shm::PlaceState::kFailed;
  }
  return shm::PlaceState::kFailed;
}

shm::PlaceEntry ToPlace(const PlacedPart& placed) {
  shm::PlaceEntry place;
  place.block = placed.block;
  place.bytes = placed.bytes;
  place.layer_begin = placed.part.layer_begin;
  place.layer_end = placed.part.layer_end;
  place.head_begin = placed.part.head_begin;
  place.head_end = placed.part.head_end;
  place.tier = TierCode(placed.tier);
  place.reason = static_cast<uint8_t>(placed.reason);
  place.state = static_cast<uint8_t>(StateOf(placed.state));
  return place;
}

ReservePartRequest ToRequest(const shm::ReserveEntry& entry) {
  ReservePartRequest part;
  std::memcpy(part.key.bytes.data(), entry.key, sizeof(entry.key));
  if (entry.has_parent != 0) {
    std::memcpy(part.parent.emplace().bytes.data(), entry.parent, sizeof(entry.parent));
  }
  part.first_position = entry.first_position;
  part.part = {entry.layer_begin, entry.layer_end, entry.head_begin, entry.head_end};
  part.bytes = entry.bytes;
  part.compute_seconds = entry.compute_seconds;
  return part;
}

}  // namespace

LocalServerSession::LocalServerSession(const Services& services, LocalServerSessionOptions options,
                                       shm::NodeRing ring, ArenaSegmentSender* sink)
    : services_(services),
      in_place_(*services.engine->in_place()),
      options_(std::move(options)),
      ring_(std::move(ring)),
      sink_(*sink),
      exposed_(services.host->segment_count(), 0) {}

LocalServerSession::~LocalServerSession() {
  for (const WaitingMatch& match : waiting_matches_) {
    if (match.answer != nullptr) match.answer->Abandon();
  }
  std::vector<uint64_t> ids;
  for (const auto& [id, lease] : leases_) ids.push_back(id);
  if (!ids.empty()) (void)services_.engine->Release(options_.session, ids);
  ids.clear();
  for (const auto& [id, bytes] : reservations_) ids.push_back(id);
  if (!ids.empty()) (void)services_.engine->Abort(options_.session, ids);
  LocalStats::Sub(services_.stats->held_bytes, held_bytes());
}

bool LocalServerSession::Serve(int max, Status* why) {
  busy_ = false;
  bool more = true;
  // An answer is the moment when the next call is taken: one look at the clock for each of a row.
  std::optional<TimePoint> now;
  for (int i = 0; more && i < max; ++i) {
    shm::Submission submission;
    switch (ring_.TakeOne(&submission)) {
      case shm::NodeRing::Take::kNone:
        more = false;
        break;
      case shm::NodeRing::Take::kBroken:
        *why = Errorf(StatusCode::kDataLoss,
                      "ring: a counter says more than {} descriptors are under way",
                      ring_.shape().entries);
        return false;
      case shm::NodeRing::Take::kOne: {
        busy_ = true;
        LocalStats::Add(services_.stats->descriptors);
        const auto call = shm::Decode(submission, ring_.shape().scratch_bytes);
        if (!call.ok()) {
          LocalStats::Add(services_.stats->rejected_descriptors);
          *why = Annotate(call.status(), "ring");
          return false;
        }
        shm::Completion done;
        done.cookie = submission.cookie;
        bool wait = true;
        if (!now) now = services_.clock->Now();
        const Status status = Run(*call, submission.cookie, *now, &done, &wait);
        if (!status.ok() || !wait) now = Finish(*call, *now, status, &done);
        break;
      }
    }
  }
  ring_.Publish();
  return true;
}

// On return `wait` says that the call waits and has no answer yet.
Status LocalServerSession::Run(const DecodedSubmission& call, uint64_t cookie, TimePoint taken,
                               shm::Completion* done, bool* wait) {
  *wait = false;
  switch (call.op) {
    case Op::kMatch:
      return Match(call, cookie, taken, done, wait);
    case Op::kMatchPools:
      return MatchPools(call, cookie, taken, done, wait);
    case Op::kExists:
      return Exists(call, done);
    case Op::kLocate: {
      *wait = call.argument > 0;
      const Status status = Locate(call, done, wait);
      if (status.ok() && *wait) {
        const auto patience = std::chrono::milliseconds(std::min(call.argument, kMaxWaitMs));
        Waiting& waiting = waiting_.emplace_back(
            Waiting{.cookie = cookie, .call = call, .since = taken, .deadline = taken + patience});
        waiting.next_look = NextLook(waiting, taken);
      }
      return status;
    }
    case Op::kRelease:
      return Release(call);
    case Op::kRenew:
      return CheckLease(call.locate.lease);
    case Op::kReserve:
      return Reserve(call, done);
    case Op::kCommit:
      return Commit(call, done);
    case Op::kAbort:
      return Abort(call);
    case Op::kReport:
      CAIRN_RETURN_IF_ERROR(CheckLease(call.locate.lease));
      return in_place_.Report(options_.session, call.locate.lease, call.locate.block_begin,
                              chunks_ != nullptr);
  }
  return OkStatus();
}

TimePoint LocalServerSession::Finish(const DecodedSubmission& call, TimePoint since,
                                     const Status& status, shm::Completion* done) {
  done->op = static_cast<uint8_t>(call.op);
  if (!status.ok()) {
    if (status.code() == StatusCode::kInvalidArgument ||
        status.code() == StatusCode::kPermissionDenied) {
      LocalStats::Add(services_.stats->rejected_descriptors);
    }
    const uint64_t cookie = done->cookie;
    *done = {};
    done->cookie = cookie;
    done->op = static_cast<uint8_t>(call.op);
    done->code = static_cast<uint8_t>(status.code());
    const std::string text = Message(status);
    const size_t bytes = std::min<size_t>(text.size(), call.output.bytes);
    if (bytes > 0) {
      shm::CopyOut(ring_.scratch(), call.output, text.data(), bytes);
      done->flags = shm::kText;
      done->count = static_cast<uint32_t>(bytes);
    }
  }
  ring_.Complete(*done);
  const TimePoint now = services_.clock->Now();
  if (services_.observer != nullptr) services_.observer->OnAnswer(call.op, now - since);
  return now;
}

Result<uint32_t> LocalServerSession::CheckTenant(const Fingerprint& fingerprint) {
  // The namespace of a fingerprint never changes.
  const auto it = own_namespaces_.find(fingerprint);
  if (it != own_namespaces_.end()) return it->second;
  CAIRN_ASSIGN_OR_RETURN(const std::string tenant, services_.engine->TenantOf(fingerprint));
  if (tenant != options_.tenant) return NoNamespace(fingerprint);
  CAIRN_ASSIGN_OR_RETURN(const auto spec, services_.engine->GetNamespace(fingerprint));
  if (own_namespaces_.size() >= kMaxKnownNamespaces) own_namespaces_.clear();
  own_namespaces_.emplace(fingerprint, spec->layout.block_tokens);
  return spec->layout.block_tokens;
}

Status LocalServerSession::Exists(const DecodedSubmission& call, shm::Completion* done) {
  CAIRN_RETURN_IF_ERROR(CheckTenant(call.fingerprint).status());
  LocalBuffers& buffers = *services_.buffers;
  buffers.keys.resize(call.count);
  buffers.tiers.resize(call.count);
  buffers.codes.resize(call.count);
  shm::CopyIn(ring_.scratch(), call.input, buffers.keys.data(), call.count);
  CAIRN_RETURN_IF_ERROR(in_place_.ExistsInPlace(call.fingerprint, buffers.keys, buffers.tiers));
  std::transform(buffers.tiers.begin(), buffers.tiers.end(), buffers.codes.begin(), TierCode);
  shm::CopyOut(ring_.scratch(), call.output, buffers.codes.data(), call.count);
  done->count = call.count;
  return OkStatus();
}

Status LocalServerSession::Locate(const DecodedSubmission& call, shm::Completion* done,
                                  bool* wait) {
  CAIRN_RETURN_IF_ERROR(CheckLease(call.locate.lease));
  LocalBuffers& buffers = *services_.buffers;
  buffers.placed.clear();
  CAIRN_RETURN_IF_ERROR(in_place_.Locate({.session = options_.session,
                                          .lease = call.locate.lease,
                                          .block_begin = call.locate.block_begin,
                                          .block_end = call.locate.block_end,
                                          .max_places = MostPlaces(call),
                                          .reach = reach()},
                                         &buffers.placed));
  const bool pending = std::any_of(
      buffers.placed.begin(), buffers.placed.end(),
      [](const PlacedPart& placed) { return placed.state == PlacedPart::State::kPending; });
  if (pending && *wait) return OkStatus();
  *wait = false;
  WritePlaces(call, call.locate.lease, done);
  return OkStatus();
}

TimePoint LocalServerSession::NextLook(const Waiting& call, TimePoint now) {
  return std::min(call.deadline,
                  now + std::max<Duration>(kFirstLook, (now - call.since) / kLookFraction));
}

TimePoint LocalServerSession::next_look() const {
  TimePoint next = waiting_matches_.empty() ? TimePoint::max() : matches_looked_ + kFirstLook;
  for (const Waiting& call : waiting_) next = std::min(next, call.next_look);
  return next;
}

size_t LocalServerSession::RetryWaiting(size_t max) {
  const TimePoint now = services_.clock->Now();
  AnswerMatches();
  matches_looked_ = now;
  size_t looks = 0;
  for (size_t left = waiting_.size(); left > 0; --left) {
    Waiting call = waiting_.front();
    waiting_.pop_front();
    if (now < call.next_look || looks == max) {
      waiting_.push_back(call);
      continue;
    }
    ++looks;
    shm::Completion done;
    done.cookie = call.cookie;
    bool wait = now < call.deadline;
    const Status status = Locate(call.call, &done, &wait);
    if (status.ok() && wait) {
      call.next_look = NextLook(call, now);
      waiting_.push_back(call);
      continue;
    }
    (void)Finish(call.call, call.since, status, &done);
  }
  ring_.Publish();
  return looks;
}

Status LocalServerSession::CheckLease(LeaseId id) const {
  if (leases_.contains(id)) return OkStatus();
  return Errorf(StatusCode::kNotFound, "field 'lease': no lease {} of this same-node session", id);
}

void LocalServerSession::WritePlaces(const DecodedSubmission& call, LeaseId lease,
                                     shm::Completion* done) {
  LocalBuffers& buffers = *services_.buffers;
  buffers.places.clear();
  const size_t count = std::min<size_t>(buffers.placed.size(), call.capacity);
  for (size_t i = 0; i < count; ++i) {
    const PlacedPart& placed = buffers.placed[i];
    shm::PlaceEntry& place = buffers.places.emplace_back(ToPlace(placed));
    const bool on_device = placed.state == PlacedPart::State::kDevice;
    if (!on_device && placed.state != PlacedPart::State::kHost) continue;
    if (!(on_device ? PlaceOnDevice(placed, &place) : PlaceInHost(placed, &place))) {
      place.state = static_cast<uint8_t>(shm::PlaceState::kElsewhere);
    }
  }
  shm::CopyOut(ring_.scratch(), call.output, buffers.places.data(), count);
  done->count = static_cast<uint32_t>(count);
  std::span<const shm::PlaceEntry> whole = buffers.places;
  if (count == buffers.placed.size()) {
    done->located = count == 0 ? 0 : buffers.placed.back().block + 1 - buffers.placed.front().block;
  } else {
    // The block at which the room ended is not counted: some of its parts may be missing.
    const uint32_t cut = buffers.placed[count].block;
    done->located = cut - buffers.placed.front().block;
    while (!whole.empty() && whole.back().block == cut) whole = whole.first(whole.size() - 1);
  }
  if (const auto held = leases_.find(lease); held != leases_.end()) {
    CountRead(whole, &held->second.told);
  }
}

void LocalServerSession::CountRead(std::span<const shm::PlaceEntry> places,
                                   std::vector<bool>* told) {
  const auto in = [](const shm::PlaceEntry& place, shm::PlaceState state) {
    return place.state == static_cast<uint8_t>(state);
  };
  const bool any_pending = std::any_of(places.begin(), places.end(), [&](const auto& place) {
    return in(place, shm::PlaceState::kPending);
  });
  ByTier<uint64_t> read;
  for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    const uint32_t block = places[begin].block;
    while (end < places.size() && places[end].block == block) ++end;
    const auto parts = places.subspan(begin, end - begin);
    // Whole next time.
    if (std::any_of(parts.begin(), parts.end(),
                    [&](const auto& part) { return in(part, shm::PlaceState::kPending); })) {
      continue;
    }
    if (any_pending || !told->empty()) {
      if (block >= told->size()) told->resize(block + 1);
      if ((*told)[block]) continue;
      (*told)[block] = true;
    }
    for (const shm::PlaceEntry& part : parts) {
      if (in(part, shm::PlaceState::kHere)) read[*TierFromCode(part.tier)] += part.bytes;
    }
  }
  in_place_.CountInPlace(options_.session, read, 0);
  LocalStats::Add(services_.stats->read_bytes,
                  std::accumulate(read.begin(), read.end(), uint64_t{0}));
}

bool LocalServerSession::PlaceInHost(const PlacedPart& placed, shm::PlaceEntry* place) {
  const HostTier::Place at = services_.host->PlaceOf(placed.extent);
  if (at.owner != options_.owner || !Expose(at)) return false;
  place->segment = at.id;
  place->offset = at.offset;
  if (at.lending == Lending::kLent) place->flags |= shm::kLent;
  return true;
}

bool LocalServerSession::PlaceOnDevice(const PlacedPart& placed, shm::PlaceEntry* place) {
  const DeviceTier::Place at = services_.devices->PlaceOf(placed.extent);
  const size_t before = chunks_->count();
  const bool exposed = chunks_->Expose(at, [this](const auto& message, auto descriptors) {
    return sink_.SendChunks(message, descriptors);
  });
  if (!exposed) return false;
  if (chunks_->count() > before) LocalStats::Add(services_.stats->shared_chunks);
  place->segment = at.memory;
  place->offset = at.offset;
  place->flags |= shm::kOnDevice;
  return true;
}

void LocalServerSession::CanImport(std::span<const std::string> uuids, shm::Descriptor process) {
  // Memory of a GPU that a process imports it can write.
  if (services_.devices == nullptr || chunks_ != nullptr || !options_.may_write) return;
  chunks_ = std::make_unique<SessionChunks>(services_.devices, options_.tenant, uuids,
                                            std::move(process), services_.left);
}

bool LocalServerSession::Expose(const HostTier::Place& place) {
  if (exposed_[place.index] == place.id) return true;
  auto shared = services_.host->Share(place.index, place.id, options_.owner);
  if (!shared.ok()) return false;
  // Whoever maps lent memory can write it: a reader gets its blocks over gRPC.
  if (shared->lending == Lending::kLent && !options_.may_write) {
    close(shared->fd);
    return false;
  }
  shm::Segments message;
  message.header.type = static_cast<uint16_t>(shm::MessageType::kSegments);
  message.count = 1;
  message.entries[0] = {.id = place.id,
                        .flags = shared->lending == Lending::kLent ? shm::kWritable : 0u,
                        .bytes = shared->bytes};
  const Status sent = sink_.SendSegments(message, {&shared->fd, 1});
  close(shared->fd);
  if (!sent.ok()) return false;
  exposed_[place.index] = place.id;
  LocalStats::Add(services_.stats->shared_segments);
  return true;
}

void LocalServerSession::SendAllSegments() {
  for (const HostTier::Place& place : services_.host->SegmentsOf(options_.owner)) {
    if (place.lending == Lending::kLent && !options_.may_write) continue;
    if (!Expose(place)) return;
  }
}

std::vector<uint32_t> LocalServerSession::TakeGone() {
  std::vector<uint32_t> gone;
  for (uint32_t i = 0; i < exposed_.size(); ++i) {
    if (exposed_[i] == 0 || services_.host->IsCurrent(i, exposed_[i], options_.owner)) continue;
    gone.push_back(exposed_[i]);
    exposed_[i] = 0;
  }
  return gone;
}

std::span<const uint64_t> LocalServerSession::CopyIds(const DecodedSubmission& call) {
  std::vector<uint64_t>& ids = services_.buffers->ids;
  ids.resize(call.count);
  shm::CopyIn(ring_.scratch(), call.input, ids.data(), call.count);
  return ids;
}

bool LocalServerSession::ForgetLease(LeaseId id) {
  const auto it = leases_.find(id);
  if (it == leases_.end()) return false;
  leased_bytes_ -= it->second.bytes;
  LocalStats::Sub(services_.stats->held_bytes, it->second.bytes);
  leases_.erase(it);
  return true;
}

Status LocalServerSession::Release(const DecodedSubmission& call) {
  // Only leases of this path: the session's others belong to gRPC.
  std::vector<uint64_t>& ids = services_.buffers->ids;
  CopyIds(call);
  std::erase_if(ids, [this](uint64_t id) { return !ForgetLease(id); });
  if (ids.empty()) return OkStatus();
  return services_.engine->Release(options_.session, ids);
}

Status LocalServerSession::Reserve(const DecodedSubmission& call, shm::Completion* done) {
  CAIRN_RETURN_IF_ERROR(CheckTenant(call.fingerprint).status());
  if (!options_.may_write) {
    return Errorf(StatusCode::kPermissionDenied,
                  "the policy does not make the session's caller a writer for tenant '{}'",
                  options_.tenant);
  }
  LocalBuffers& buffers = *services_.buffers;
  buffers.entries.resize(call.count);
  shm::CopyIn(ring_.scratch(), call.input, buffers.entries.data(), call.count);
  buffers.parts.clear();
  uint64_t wanted = 0;
  for (const shm::ReserveEntry& entry : buffers.entries) {
    if (entry.has_parent > 1 || entry.reserved != 0) {
      return InvalidArgument("field 'has_parent': got {} and reserved {}, expected 0 or 1 and 0",
                             entry.has_parent, entry.reserved);
    }
    if (entry.bytes > services_.host->max_extent_bytes()) {
      return InvalidArgument("field 'bytes': got {}, expected 1 to {}", entry.bytes,
                             services_.host->max_extent_bytes());
    }
    wanted += HostRoom(entry.bytes);
    buffers.parts.push_back(ToRequest(entry));
  }
  if (held_bytes() + wanted > options_.quota_bytes ||
      reserved_bytes_ + wanted > options_.quota_bytes / 2) {
    return Errorf(
        StatusCode::kResourceExhausted,
        "reservations: {} bytes held, {} of them reserved, and {} more; the session's limit "
        "is {}, half of it for reservations",
        held_bytes(), reserved_bytes_, wanted, options_.quota_bytes);
  }
  CAIRN_ASSIGN_OR_RETURN(
      const auto results,
      in_place_.ReserveInPlace(options_.session, call.fingerprint, buffers.parts));
  buffers.grants.clear();
  for (size_t i = 0; i < results.size(); ++i) {
    shm::Grant& grant = buffers.grants.emplace_back();
    grant.code = static_cast<uint8_t>(results[i].status().code());
    if (!results[i].ok()) continue;
    const HostTier::Place at = services_.host->PlaceOf(results[i]->extent);
    if (at.owner != options_.owner || at.lending != Lending::kLent || !Expose(at)) {
      const ReservationId id = results[i]->id;
      (void)services_.engine->Abort(options_.session, {&id, 1});
      grant.code = static_cast<uint8_t>(StatusCode::kResourceExhausted);
      continue;
    }
    grant.reservation = results[i]->id;
    grant.segment = at.id;
    grant.offset = at.offset;
    reservations_.emplace(results[i]->id, buffers.parts[i].bytes);
    const uint64_t taken = HostRoom(buffers.parts[i].bytes);
    reserved_bytes_ += taken;
    LocalStats::Add(services_.stats->held_bytes, taken);
  }
  shm::CopyOut(ring_.scratch(), call.output, buffers.grants.data(), buffers.grants.size());
  done->count = call.count;
  return OkStatus();
}

Status LocalServerSession::Commit(const DecodedSubmission& call, shm::Completion* done) {
  const std::span<const uint64_t> ids = CopyIds(call);
  // Only what was granted here: what another path reserved may be being filled by it.
  std::vector<uint64_t> known;
  known.reserve(ids.size());
  for (const uint64_t id : ids) {
    if (reservations_.contains(id)) known.push_back(id);
  }
  std::vector<Status> statuses;
  if (!known.empty()) {
    CAIRN_ASSIGN_OR_RETURN(statuses, services_.engine->Commit(options_.session, known, {}));
  }
  std::vector<uint8_t>& codes = services_.buffers->codes;
  codes.assign(ids.size(), static_cast<uint8_t>(StatusCode::kNotFound));
  uint64_t written = 0;
  size_t at = 0;
  for (size_t i = 0; i < ids.size() && at < known.size(); ++i) {
    if (ids[i] != known[at]) continue;
    const Status& status = statuses[at++];
    codes[i] = static_cast<uint8_t>(status.code());
    const auto it = reservations_.find(ids[i]);
    if (it == reservations_.end()) continue;  // Named twice.
    if (status.ok()) written += it->second;
    reserved_bytes_ -= HostRoom(it->second);
    LocalStats::Sub(services_.stats->held_bytes, HostRoom(it->second));
    reservations_.erase(it);
  }
  shm::CopyOut(ring_.scratch(), call.output, codes.data(), codes.size());
  done->count = call.count;
  in_place_.CountInPlace(options_.session, {}, written);
  LocalStats::Add(services_.stats->written_bytes, written);
  return OkStatus();
}

Status LocalServerSession::Abort(const DecodedSubmission& call) {
  std::vector<uint64_t>& ids = services_.buffers->ids;
  CopyIds(call);
  std::erase_if(ids, [this](uint64_t id) {
    const auto it = reservations_.find(id);
    if (it == reservations_.end()) return true;
    reserved_bytes_ -= HostRoom(it->second);
    LocalStats::Sub(services_.stats->held_bytes, HostRoom(it->second));
    reservations_.erase(it);
    return false;
  });
  if (ids.empty()) return OkStatus();
  return services_.engine->Abort(options_.session, ids);
}

}  // namespace cairn::cache
