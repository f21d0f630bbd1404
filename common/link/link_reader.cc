#include "common/link/link_reader.h"

#include <algorithm>
#include <utility>

namespace cairn::link {
namespace {

bool InWindow(const std::vector<MemorySize>& windows, uint32_t number, uint64_t offset,
              uint64_t bytes) {
  return std::any_of(windows.begin(), windows.end(), [&](const MemorySize& window) {
    return window.number == number && offset <= window.bytes && bytes <= window.bytes - offset;
  });
}

// The codes with which a holder says that it has begun nothing. After any other error nobody knows.
bool IsRefusal(StatusCode code) {
  return code == StatusCode::kInvalidArgument || code == StatusCode::kNotFound ||
         code == StatusCode::kPermissionDenied || code == StatusCode::kFailedPrecondition ||
         code == StatusCode::kResourceExhausted;
}

}  // namespace

Status CheckHost(const LinkOptions& options, const std::string& host) {
  if (host == options.host || options.trusted_network) return OkStatus();
  return Errorf(StatusCode::kPermissionDenied,
                "the peer is on host '{}', expected '{}': between hosts bytes are not encrypted, "
                "and the network is not named trusted",
                host, options.host);
}

std::vector<MemorySize> WindowSizes(const LinkOptions& options, const Memories& memories) {
  std::vector<MemorySize> sizes;
  if (!options.puts) return sizes;
  for (const Memories::Memory& memory : memories.all()) {
    sizes.push_back({memory.number, memory.bytes});
  }
  if (sizes.size() > OpenRequest::kMostMemories) sizes.clear();
  return sizes;
}

std::vector<CommunicatorMaker::Window> MakeWindows(const Memories& memories,
                                                   const std::vector<MemorySize>& own,
                                                   const std::vector<MemorySize>& others) {
  std::vector<CommunicatorMaker::Window> windows;
  if (own.size() != others.size()) return windows;
  for (const MemorySize& size : own) {
    const Result<uint64_t> address = memories.Find(size.number, 0, size.bytes);
    // It has been removed meanwhile. The other side waits for a window of it, until its deadline.
    if (!address.ok()) return {};
    windows.push_back({*address, size.bytes});
  }
  return windows;
}

LinkReader::LinkReader(LinkOptions options, LinkDependencies dependencies, LinkCalls* calls,
                       PeerHistory* history)
    : options_(std::move(options)),
      dependencies_(std::move(dependencies)),
      calls_(*calls),
      history_(*history) {}

void LinkReader::Fetch(const std::string& peer, Plan plan, std::shared_ptr<void> keep,
                       TimePoint deadline, Done done) {
  Status fits = plan.Check();
  if (fits.ok()) fits = ToMove(plan, Way::kSend).status();
  if (fits.ok()) fits = history_.MayCall(peer);
  if (!fits.ok()) return done(fits);
  const auto waiting = std::make_shared<Waiting>(
      Waiting{std::move(plan), std::move(keep), deadline, std::move(done)});
  uint64_t epoch = 0;
  {
    MutexLock lock(mu_);
    // It fires also if the link below breaks or never joins.
    waiting->timer = dependencies_.link.timers->At(
        deadline, [self = shared_from_this(), peer, waiting] { self->Late(peer, waiting); });
    const auto it = peers_.find(peer);
    if (stopped_) {
      fits = Errorf(StatusCode::kUnavailable, "links are stopped");
    } else if (it != peers_.end()) {
      if (it->second.waiting.size() >= options_.most_waiting) {
        fits = Errorf(StatusCode::kResourceExhausted,
                      "moves from '{}': got more than {}, which wait", peer, options_.most_waiting);
      } else {
        it->second.waiting.push_back(waiting);
        epoch = it->second.epoch;
      }
    }
  }
  if (fits.ok() && epoch == 0) {
    const Result<uint64_t> opened = Open(peer, waiting);
    fits = opened.status();
    if (opened.ok()) epoch = *opened;
  }
  if (!fits.ok()) return Complete(waiting, fits);
  Next(peer, epoch);
}

void LinkReader::Prepare(const std::string& peer) {
  if (!history_.MayCall(peer).ok()) return;
  {
    MutexLock lock(mu_);
    if (stopped_ || peers_.find(peer) != peers_.end()) return;
  }
  // Without room for it a later call may find some.
  (void)Open(peer, nullptr);
}

bool LinkReader::Ready(const std::string& peer) const {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mu_);
    const auto it = peers_.find(peer);
    if (it == peers_.end()) return false;
    link = it->second.link;
  }
  const Link::State state = link->state();
  return state == Link::State::kIdle || state == Link::State::kMoving;
}

Result<uint64_t> LinkReader::Open(const std::string& name, const WaitingPtr& waiting) {
  const uint64_t epoch = history_.NextEpoch();
  const auto self = shared_from_this();
  const auto link = std::make_shared<Link>(
      options_.link, dependencies_.link,
      Link::Events{
          .idle = [self, name, epoch] { self->Next(name, epoch); },
          .ending = [self, name, epoch](const Status& why) { self->Ending(name, epoch, why); },
          .ended = [self](
                       const Link& ended,
                       bool abandoned) { self->dependencies_.table->Remove(&ended, abandoned); }});
  CAIRN_RETURN_IF_ERROR(dependencies_.table->Add(link));
  {
    MutexLock lock(mu_);
    if (stopped_) {
      dependencies_.table->Remove(link.get(), /*abandoned=*/false);
      return Errorf(StatusCode::kUnavailable, "links are stopped");
    }
    const auto [it, fresh] = peers_.try_emplace(name);
    if (waiting != nullptr) it->second.waiting.push_back(waiting);
    if (!fresh) {
      // Another fetch was faster.
      dependencies_.table->Remove(link.get(), /*abandoned=*/false);
      return it->second.epoch;
    }
    it->second.link = link;
    it->second.epoch = epoch;
  }
  link->Begin([self, name, epoch, link] {
    const Result<UniqueId> id = self->dependencies_.maker->NewId();
    if (!id.ok()) return link->End(id.status());
    self->Ask(name, epoch, *id);
  });
  return epoch;
}

void LinkReader::Ask(const std::string& name, uint64_t epoch, const UniqueId& id) {
  OpenRequest request{
      .epoch = epoch, .id = id, .host = options_.host, .version = dependencies_.maker->version()};
  if (history_.MayPut(name)) request.memories = WindowSizes(options_, *dependencies_.memories);
  calls_.Open(name, request, dependencies_.link.clock->Now() + options_.link.join,
              [self = shared_from_this(), name, epoch, id, request](Result<OpenAnswer> answer) {
                self->Opened(name, epoch, id, request, answer);
              });
}

void LinkReader::Opened(const std::string& name, uint64_t epoch, const UniqueId& id,
                        const OpenRequest& said, const Result<OpenAnswer>& answer) {
  const std::shared_ptr<Link> link = LinkOf(name, epoch);
  if (link == nullptr) return;
  Status fits = answer.status();
  if (fits.ok()) fits = Check(*answer);
  if (fits.ok()) fits = CheckHost(options_, answer->host);
  if (!fits.ok()) return link->End(fits);
  std::vector<CommunicatorMaker::Window> windows =
      MakeWindows(*dependencies_.memories, said.memories, answer->memories);
  {
    MutexLock lock(mu_);
    const auto it = peers_.find(name);
    if (it == peers_.end() || it->second.epoch != epoch) return;
    it->second.own = said.memories;
    it->second.others = answer->memories;
  }
  link->Join(dependencies_.maker->Make(id, 0, std::move(windows)));
}

void LinkReader::Next(const std::string& name, uint64_t epoch) {
  MoveRequest request{.epoch = epoch};
  WaitingPtr waiting;
  std::shared_ptr<Link> link;
  std::shared_ptr<void> keep;
  {
    MutexLock lock(mu_);
    const auto it = peers_.find(name);
    if (it == peers_.end() || it->second.epoch != epoch) return;
    Peer& peer = it->second;
    if (peer.asked != nullptr || peer.link->state() != Link::State::kIdle) return;
    while (!peer.waiting.empty() && peer.waiting.front()->over) peer.waiting.pop_front();
    if (peer.waiting.empty()) return;
    link = peer.link;
    waiting = peer.asked = peer.waiting.front();
    keep = waiting->keep;
    peer.waiting.pop_front();
    request.sequence = ++peer.sequence;
    const bool put =
        peer.link->puts() &&
        std::all_of(waiting->plan.pieces.begin(), waiting->plan.pieces.end(),
                    [&](const Piece& piece) {
                      return InWindow(peer.own, piece.target, piece.target_offset, piece.bytes) &&
                             InWindow(peer.others, piece.source, piece.source_offset, piece.bytes);
                    });
    request.way = put ? Way::kPut : Way::kSend;
    peer.put = put ? keep : nullptr;
  }
  // Its end completes what is asked for.
  if (!link->Hold(std::move(keep))) return;
  request.plan = waiting->plan;
  request.timeout = std::max<Duration>(waiting->deadline - dependencies_.link.clock->Now(),
                                       std::chrono::milliseconds(1));
  calls_.Move(name, request, waiting->deadline,
              [self = shared_from_this(), name, epoch, waiting, way = request.way](Status answer) {
                self->Answered(name, epoch, waiting, way, answer);
              });
}

void LinkReader::Answered(const std::string& name, uint64_t epoch, const WaitingPtr& waiting,
                          Way way, const Status& answer) {
  const std::shared_ptr<Link> link = LinkOf(name, epoch);
  // Its end has completed, or completes, what was asked for.
  if (link == nullptr) return;
  if (!answer.ok()) {
    // Without the holder's link, this one is of no use. Nothing moved, so nobody is to blame.
    if (answer.code() == StatusCode::kFailedPrecondition) {
      Complete(waiting, answer);
      return link->End(OkStatus());
    }
    if (!IsRefusal(answer.code())) return link->End(answer);
    {
      MutexLock lock(mu_);
      const auto it = peers_.find(name);
      if (it != peers_.end() && it->second.epoch == epoch) {
        it->second.asked = nullptr;
        it->second.put = nullptr;
      }
    }
    (void)link->Hold(nullptr);
    Complete(waiting, answer);
    return Next(name, epoch);
  }
  const Result<Move> move = ToMove(waiting->plan, way);
  Status started = move.status();
  if (started.ok()) {
    started = link->Start(
        {.move = *move,
         .deadline = waiting->deadline,
         .done = [self = shared_from_this(), name, epoch, way, waiting](const Status& status) {
           if (status.ok()) {
             self->history_.Worked(name);
             MutexLock lock(self->mu_);
             const auto it = self->peers_.find(name);
             if (it != self->peers_.end() && it->second.epoch == epoch) {
               it->second.asked = nullptr;
               it->second.put = nullptr;
             }
           } else if (way == Way::kPut && IsLibraryError(status)) {
             self->history_.RefusedPuts(name);
           }
           self->Complete(waiting, status);
         }});
  }
  // The holder has begun: the two do not fit together any more.
  if (!started.ok()) link->End(started);
}

void LinkReader::Ending(const std::string& name, uint64_t epoch, const Status& why) {
  dependencies_.table->Ending(why);
  if (!why.ok()) {
    history_.Broke(name);
    dependencies_.broke(name, why);
  }
  std::deque<WaitingPtr> left;
  std::shared_ptr<void> put;
  {
    MutexLock lock(mu_);
    const auto it = peers_.find(name);
    if (it == peers_.end() || it->second.epoch != epoch) return;
    put = std::move(it->second.put);
    left.swap(it->second.waiting);
    if (it->second.asked != nullptr) left.push_front(it->second.asked);
    peers_.erase(it);
  }
  const Status status =
      why.ok() ? Errorf(StatusCode::kUnavailable, "the link to '{}' was closed", name) : why;
  for (const WaitingPtr& waiting : left) Complete(waiting, status);
  Close(name, epoch, std::move(put));
}

// A communicator ends well only if both sides abort it, and only the holder's abort stops its puts.
void LinkReader::Close(const std::string& name, uint64_t epoch, std::shared_ptr<void> keep) {
  const auto& limits = options_.link;
  const TimePoint deadline = dependencies_.link.clock->Now() + limits.grace + limits.revoke +
                             limits.abort + std::chrono::seconds(1);
  calls_.Close(name, epoch, deadline, [self = shared_from_this(), keep](const Status& status) {
    if (keep == nullptr || status.ok()) return;
    if (status.code() == StatusCode::kAborted) {
      MutexLock lock(self->mu_);
      self->lost_.push_back(keep);
      return;
    }
    // It cannot be asked: it may be dead, and then nothing comes any more.
    self->dependencies_.link.timers->At(
        self->dependencies_.link.clock->Now() + self->options_.settling, [keep] {});
  });
}

void LinkReader::Complete(const WaitingPtr& waiting, const Status& status) {
  Timers::Id timer = 0;
  std::shared_ptr<void> keep;  // The link may keep the bytes longer.
  {
    MutexLock lock(mu_);
    if (std::exchange(waiting->over, true)) return;
    timer = waiting->timer;
    keep = std::move(waiting->keep);
  }
  dependencies_.link.timers->Cancel(timer);
  keep.reset();
  std::exchange(waiting->done, {})(status);
}

void LinkReader::Late(const std::string& name, const WaitingPtr& waiting) {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mu_);
    const auto it = peers_.find(name);
    // Its answer may be under way, and the holder may have begun. Without one, only this fetch
    // ends: the link may still be joining.
    if (it != peers_.end() && it->second.asked == waiting) link = it->second.link;
  }
  const Status late = Errorf(StatusCode::kDeadlineExceeded, "the bytes did not come in time");
  if (link != nullptr) link->End(late);
  Complete(waiting, late);
}

std::shared_ptr<Link> LinkReader::LinkOf(const std::string& name, uint64_t epoch) {
  MutexLock lock(mu_);
  const auto it = peers_.find(name);
  return it == peers_.end() || it->second.epoch != epoch ? nullptr : it->second.link;
}

Result<Move> LinkReader::ToMove(const Plan& plan, Way way) const {
  Move move{.receives = true, .way = way};
  for (const Piece& piece : plan.pieces) {
    CAIRN_ASSIGN_OR_RETURN(
        const uint64_t address,
        dependencies_.memories->Find(piece.target, piece.target_offset, piece.bytes));
    move.parts.push_back({.address = address, .bytes = piece.bytes});
  }
  return move;
}

void LinkReader::Stop() {
  std::vector<std::shared_ptr<Link>> links;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    for (const auto& [name, peer] : peers_) links.push_back(peer.link);
  }
  for (const auto& link : links) link->End(OkStatus());
}

}  // namespace cairn::link
