#include "clients/cpp/src/local/local_push.h"

#include <algorithm>
#include <utility>

#include "common/memory/bulk_copy.h"

namespace cairn::client::local {
namespace {

// A group of parts holds little of the node's budget at a time.
constexpr size_t kGroupParts = 64;
constexpr uint64_t kMaxGroupBytes = 16ull << 20;

// The node had the part, or another writer was first: as good as stored.
Status StoredIsFine(const Status& status) {
  return status.code() == StatusCode::kAlreadyExists ? OkStatus() : status;
}

}  // namespace

Result<std::unique_ptr<LocalPush>> LocalPush::Begin(std::shared_ptr<LocalSession> session,
                                                    const Digest& fingerprint,
                                                    std::span<const PartToWrite> parts,
                                                    const PushOptions& options,
                                                    const InPlaceHooks& hooks, TimePoint deadline) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<Room> rooms, session->Reserve(fingerprint, parts, deadline));
  std::unique_ptr<LocalPush> push(new LocalPush(std::move(session), options, hooks.committed));
  std::vector<PartToWrite> refused;
  for (size_t i = 0; i < rooms.size(); ++i) {
    Room& room = rooms[i];
    push->slots_.push_back({StoredIsFine(room.status), room.bytes});
    if (room.status.ok()) {
      push->held_.push_back(i);
      push->reservations_.push_back(room.reservation);
      push->segments_.push_back(std::move(room.segment));
    } else if (room.status.code() == StatusCode::kResourceExhausted) {
      refused.push_back(parts[i]);
      push->rest_slots_.push_back(i);
    }
  }
  if (refused.empty() || hooks.rest == nullptr) return push;
  push->rest_ = hooks.rest(refused);
  const auto slots = push->rest_->slots();
  for (size_t i = 0; i < slots.size(); ++i) push->slots_[push->rest_slots_[i]] = slots[i];
  return push;
}

LocalPush::~LocalPush() { session_->Abort(reservations_); }

Result<std::vector<Status>> LocalPush::Commit() {
  std::vector<Status> results(slots_.size());
  std::vector<uint64_t> bytes(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    results[i] = slots_[i].status;
    bytes[i] = slots_[i].room.size();
  }
  slots_.clear();
  const std::vector<uint64_t> reservations = std::exchange(reservations_, {});
  if (!reservations.empty()) {
    // For the node, which may look at them on another CPU.
    StreamingFence();
    const auto codes = session_->Commit(reservations, session_->clock().Now() + deadline_);
    if (!codes.ok()) {
      // Parts that were not committed must not stay: the session's end may be far away.
      session_->Abort(reservations);
      return codes.status();
    }
    uint64_t parts = 0, stored = 0;
    for (size_t i = 0; i < held_.size(); ++i) {
      results[held_[i]] = StoredIsFine((*codes)[i]);
      if (!results[held_[i]].ok()) continue;
      ++parts;
      stored += bytes[held_[i]];
    }
    if (committed_ != nullptr) committed_(parts, stored);
  }
  if (rest_ != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Status> rest, rest_->Commit());
    for (size_t i = 0; i < rest.size() && i < rest_slots_.size(); ++i) {
      results[rest_slots_[i]] = rest[i];
    }
  }
  return results;
}

PushReport PushParts(const std::shared_ptr<LocalSession>& session, const Digest& fingerprint,
                     std::span<const PartToPush> parts, TimePoint deadline) {
  PushReport report;
  std::vector<Status>& results = report.results;
  while (results.size() < parts.size()) {
    const auto left = parts.subspan(results.size());
    std::vector<PartToWrite> group;
    uint64_t bytes = 0;
    for (const PartToPush& part : left) {
      if (group.size() == kGroupParts ||
          (bytes > 0 && bytes + part.bytes.size() > kMaxGroupBytes)) {
        break;
      }
      bytes += part.bytes.size();
      group.push_back({.key = part.key,
                       .parent = part.parent,
                       .first_position = part.first_position,
                       .rect = part.rect,
                       .bytes = part.bytes.size(),
                       .compute_seconds = part.compute_seconds});
    }
    PushOptions options;
    options.deadline = deadline - session->clock().Now();
    const auto push = LocalPush::Begin(session, fingerprint, group, options, {}, deadline);
    report.status = push.status();
    if (!push.ok()) return report;
    const auto slots = (*push)->slots();
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::span<std::byte> room = slots[i].room;
      if (!room.empty()) BulkCopy(room.data(), left[i].bytes.data(), room.size());
    }
    const auto done = (*push)->Commit();
    report.status = done.status();
    if (!done.ok()) return report;
    results.insert(results.end(), done->begin(), done->end());
  }
  return report;
}

}  // namespace cairn::client::local
