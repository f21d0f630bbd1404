#include "common/link/link_holder.h"

#include <optional>
#include <utility>

namespace cairn::link {
namespace {

// The window of a memory.
std::optional<uint32_t> Find(const std::vector<MemorySize>& windows, uint32_t number,
                             uint64_t offset, uint64_t bytes) {
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].number != number) continue;
    if (offset > windows[i].bytes || bytes > windows[i].bytes - offset) return std::nullopt;
    return static_cast<uint32_t>(i);
  }
  return std::nullopt;
}

Status DidNotEnd() {
  return Errorf(StatusCode::kAborted, "the communicator did not end when it was aborted");
}

}  // namespace

LinkHolder::LinkHolder(LinkOptions options, LinkDependencies dependencies, Grant grant,
                       PeerHistory* history)
    : options_(std::move(options)),
      dependencies_(std::move(dependencies)),
      grant_(std::move(grant)),
      history_(*history) {}

Result<OpenAnswer> LinkHolder::Open(const std::string& peer, const OpenRequest& request) {
  CAIRN_RETURN_IF_ERROR(Check(request));
  CAIRN_RETURN_IF_ERROR(CheckHost(options_, request.host));
  CAIRN_RETURN_IF_ERROR(history_.MayCall(peer));
  CAIRN_RETURN_IF_ERROR(history_.Admit(peer, request.epoch));
  OpenAnswer answer{.host = options_.host, .version = dependencies_.maker->version()};
  if (history_.MayPut(peer)) answer.memories = WindowSizes(options_, *dependencies_.memories);
  std::vector<CommunicatorMaker::Window> windows =
      MakeWindows(*dependencies_.memories, answer.memories, request.memories);

  const auto self = shared_from_this();
  const uint64_t epoch = request.epoch;
  const auto link = std::make_shared<Link>(
      options_.link, dependencies_.link,
      Link::Events{
          .ending = [self, peer, epoch](const Status& why) { self->Ending(peer, epoch, why); },
          .ended =
              [self, peer, epoch](const Link& ended, bool abandoned) {
                self->dependencies_.table->Remove(&ended, abandoned);
                self->Ended(peer, epoch, abandoned);
              }});
  CAIRN_RETURN_IF_ERROR(dependencies_.table->Add(link));
  std::shared_ptr<Link> before;
  {
    MutexLock lock(mu_);
    if (stopped_) {
      dependencies_.table->Remove(link.get(), /*abandoned=*/false);
      return Errorf(StatusCode::kUnavailable, "links are stopped");
    }
    closing_.try_emplace({peer, epoch});
    Peer& entry = peers_[peer];
    before =
        std::exchange(
            entry,
            Peer{.link = link, .epoch = epoch, .own = answer.memories, .others = request.memories})
            .link;
  }
  // The reader has given up that one.
  if (before != nullptr) before->End(OkStatus());
  link->Begin(nullptr);
  link->Join(dependencies_.maker->Make(request.id, 1, std::move(windows)));
  return answer;
}

Status LinkHolder::Move(const std::string& peer, const MoveRequest& request) {
  CAIRN_RETURN_IF_ERROR(Check(request));
  Peer there;
  {
    MutexLock lock(mu_);
    const auto it = peers_.find(peer);
    if (it == peers_.end() || it->second.epoch != request.epoch) {
      return Errorf(StatusCode::kFailedPrecondition, "epoch: got {}, expected {}", request.epoch,
                    it == peers_.end() ? "one that was opened" : std::to_string(it->second.epoch));
    }
    if (request.sequence <= it->second.sequence) {
      return Errorf(StatusCode::kFailedPrecondition, "sequence: got {}, expected more than {}",
                    request.sequence, it->second.sequence);
    }
    it->second.sequence = request.sequence;
    there = it->second;
  }
  CAIRN_ASSIGN_OR_RETURN(link::Move move,
                         ToMove(request.plan, request.way, there.own, there.others));
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<void> keep, grant_(peer, request.plan));
  return there.link->Start(
      {.move = std::move(move),
       .deadline = dependencies_.link.clock->Now() + request.timeout,
       .keep = std::move(keep),
       .done = [self = shared_from_this(), peer, way = request.way](const Status& status) {
         if (status.ok()) self->history_.Worked(peer);
         if (way == Way::kPut && IsLibraryError(status)) self->history_.RefusedPuts(peer);
       }});
}

void LinkHolder::Ending(const std::string& name, uint64_t epoch, const Status& why) {
  dependencies_.table->Ending(why);
  if (!why.ok()) history_.Broke(name);
  MutexLock lock(mu_);
  const auto it = peers_.find(name);
  if (it != peers_.end() && it->second.epoch == epoch) peers_.erase(it);
}

void LinkHolder::Ended(const std::string& name, uint64_t epoch, bool abandoned) {
  Waiters waiters;
  {
    MutexLock lock(mu_);
    if (abandoned) abandoned_.insert({name, epoch});
    const auto it = closing_.find({name, epoch});
    if (it == closing_.end()) return;
    waiters.swap(it->second);
    closing_.erase(it);
  }
  for (const auto& done : waiters) done(abandoned ? DidNotEnd() : OkStatus());
}

void LinkHolder::Close(const std::string& peer, uint64_t epoch, std::function<void(Status)> done) {
  std::shared_ptr<Link> link;
  Status gone;
  {
    MutexLock lock(mu_);
    const auto waiters = closing_.find({peer, epoch});
    if (waiters != closing_.end()) {
      // A reader asks once or twice.
      constexpr size_t kMostWaiters = 8;
      if (waiters->second.size() < kMostWaiters) {
        waiters->second.push_back(std::exchange(done, {}));
      } else {
        gone = Errorf(StatusCode::kResourceExhausted, "calls of Close: got more than {}",
                      kMostWaiters);
      }
      const auto it = peers_.find(peer);
      if (it != peers_.end() && it->second.epoch == epoch) link = it->second.link;
    } else if (abandoned_.count({peer, epoch}) != 0) {
      gone = DidNotEnd();
    }
  }
  if (link != nullptr) link->End(OkStatus());
  if (done) done(gone);
}

Result<link::Move> LinkHolder::ToMove(const Plan& plan, Way way, const std::vector<MemorySize>& own,
                                      const std::vector<MemorySize>& others) const {
  link::Move move{.way = way};
  for (const Piece& piece : plan.pieces) {
    link::Move::Part part{.bytes = piece.bytes};
    CAIRN_ASSIGN_OR_RETURN(
        part.address, dependencies_.memories->Find(piece.source, piece.source_offset, piece.bytes));
    if (way == Way::kPut) {
      const auto window = Find(others, piece.target, piece.target_offset, piece.bytes);
      if (!window.has_value() || own.size() != others.size() ||
          !Find(own, piece.source, piece.source_offset, piece.bytes)) {
        return InvalidArgument(
            "way: got put, expected send: bytes of memory {} at {} to memory {} "
            "at {} are in no windows",
            piece.source, piece.source_offset, piece.target, piece.target_offset);
      }
      part.window = *window;
      part.offset = piece.target_offset;
    }
    move.parts.push_back(part);
  }
  return move;
}

void LinkHolder::Stop() {
  MutexLock lock(mu_);
  stopped_ = true;
}

}  // namespace cairn::link
