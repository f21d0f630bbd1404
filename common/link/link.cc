#include "common/link/link.h"

#include <utility>

namespace cairn::link {

Link::Link(Options options, Dependencies dependencies, Events events)
    : options_(options),
      dependencies_(std::move(dependencies)),
      events_(std::move(events)),
      used_(dependencies_.clock->Now()) {}

void Link::Begin(std::function<void()> first) {
  const auto self = shared_from_this();
  thread_ = dependencies_.threads("cairn-link");
  {
    MutexLock lock(mu_);
    if (state_ != State::kOpening) return;  // Whoever stops links ended it before it began.
    deadline_ = dependencies_.timers->At(dependencies_.clock->Now() + options_.join, [self] {
      self->End(Errorf(StatusCode::kDeadlineExceeded, "the peer did not join in {} s",
                       Seconds(self->options_.join)));
    });
    busy_ = first != nullptr;
  }
  if (first == nullptr) return;
  const Status posted = thread_->Post([self, first = std::move(first)] {
    first();
    self->LeftCall();
  });
  if (posted.ok()) return;
  LeftCall();
  End(posted);
}

void Link::Join(std::shared_ptr<Communicator> communicator) {
  {
    MutexLock lock(mu_);
    if (state_ != State::kOpening) return;  // It has never joined: there is nothing to abort.
    state_ = State::kJoining;
    communicator_ = std::move(communicator);
  }
  Run([](Communicator& made) { return made.Join(); });
}

bool Link::Hold(std::shared_ptr<void> keep) {
  MutexLock lock(mu_);
  if (state_ >= State::kEnding) return false;
  held_.swap(keep);
  return true;
}

Status Link::Start(Transfer transfer) {
  {
    MutexLock lock(mu_);
    if (state_ >= State::kEnding) {
      return Errorf(StatusCode::kFailedPrecondition, "the link has ended");
    }
    if (transfers_.size() >= kMostTransfers) {
      return Errorf(StatusCode::kResourceExhausted, "moves of a link: got more than {} at a time",
                    kMostTransfers);
    }
    transfers_.push_back(std::move(transfer));
    used_ = dependencies_.clock->Now();
    if (state_ != State::kIdle) return OkStatus();
    state_ = State::kMoving;
  }
  Issue();
  return OkStatus();
}

// The first transfer. The state is kMoving.
void Link::Issue() {
  Move move;
  TimePoint deadline;
  {
    MutexLock lock(mu_);
    if (state_ != State::kMoving) return;
    deadline = transfers_.front().deadline;
    // A copy: the transfer may end while the thread is in the call.
    move = transfers_.front().move;
    deadline_ = dependencies_.timers->At(deadline, [self = shared_from_this()] {
      self->End(Errorf(StatusCode::kDeadlineExceeded, "the bytes did not come in time"));
    });
  }
  Run([move = std::move(move), deadline, clock = dependencies_.clock](Communicator& communicator) {
    // This process may have been stopped: a put that comes late could hit bytes that the reader
    // uses for something else.
    if (clock->Now() >= deadline) {
      return Errorf(StatusCode::kDeadlineExceeded, "the move was late before it began");
    }
    return communicator.Issue(move);
  });
}

void Link::Run(std::function<Status(Communicator&)> call) {
  const Status posted = thread_->Post([self = shared_from_this(), call = std::move(call)] {
    std::shared_ptr<Communicator> communicator;
    {
      MutexLock lock(self->mu_);
      if (self->state_ >= State::kEnding) return;
      self->busy_ = true;
      communicator = self->communicator_;
    }
    const Status status = call(*communicator);
    self->LeftCall();
    if (!status.ok()) return self->End(status);
    self->Poll();
  });
  if (!posted.ok()) End(posted);
}

// On the issuing thread.
void Link::Poll() {
  std::shared_ptr<Communicator> communicator;
  {
    MutexLock lock(mu_);
    if (state_ >= State::kEnding) return;
    busy_ = true;
    communicator = communicator_;
  }
  const Result<bool> over = communicator->Poll();
  LeftCall();
  if (!over.ok()) return End(over.status());
  if (*over) return HasEnded();
  dependencies_.timers->At(dependencies_.clock->Now() + options_.poll, [self = shared_from_this()] {
    const Status posted = self->thread_->Post([self] { self->Poll(); });
    if (!posted.ok()) self->End(posted);
  });
}

// The last thing that the communicator did. On the issuing thread.
void Link::HasEnded() {
  Transfer ended;
  std::shared_ptr<void> held;
  bool more = false;
  Timers::Id timer = 0;
  {
    MutexLock lock(mu_);
    if (state_ >= State::kEnding) return;
    if (state_ == State::kJoining) {
      puts_ = communicator_->puts();
    } else {
      ended = std::move(transfers_.front());
      transfers_.pop_front();
      held = std::move(held_);
    }
    more = !transfers_.empty();
    state_ = more ? State::kMoving : State::kIdle;
    timer = std::exchange(deadline_, 0);
    used_ = dependencies_.clock->Now();
  }
  dependencies_.timers->Cancel(timer);
  // Whoever hears of the end finds its bytes let go of.
  held.reset();
  ended.keep.reset();
  ended.done(OkStatus());
  if (more) return Issue();
  events_.idle();
}

void Link::End(const Status& why) {
  std::deque<Transfer> transfers;
  bool wait = false;
  Timers::Id timer = 0;
  {
    MutexLock lock(mu_);
    if (state_ >= State::kEnding) return;
    // Only what was begun can still be touched.
    if (state_ == State::kMoving) kept_ = transfers_.front().keep;
    state_ = State::kEnding;
    transfers.swap(transfers_);
    timer = std::exchange(deadline_, 0);
    wait = busy_;
  }
  dependencies_.timers->Cancel(timer);
  const Status status = why.ok() ? Errorf(StatusCode::kUnavailable, "the link was closed") : why;
  for (const Transfer& transfer : transfers) transfer.done(status);
  events_.ending(why);
  if (!wait) return RevokeNow();
  dependencies_.timers->At(dependencies_.clock->Now() + options_.grace,
                           [self = shared_from_this()] { self->RevokeNow(); });
}

void Link::LeftCall() {
  bool revoke = false;
  std::shared_ptr<void> kept, held;
  {
    MutexLock lock(mu_);
    busy_ = false;
    revoke = state_ == State::kEnding && !revoking_;
    if (aborted_) {
      kept = std::move(kept_);
      held = std::move(held_);
    }
  }
  if (revoke) RevokeNow();
}

void Link::RevokeNow() {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<void> held;
  bool stuck = false;
  {
    MutexLock lock(mu_);
    if (std::exchange(revoking_, true)) return;
    communicator = communicator_;
    stuck = busy_;
    if (communicator == nullptr) held = std::move(held_);
  }
  // It never joined. The thread may still be making an id.
  if (communicator == nullptr) return Finish(stuck ? State::kAbandoned : State::kEnded);
  const auto self = shared_from_this();
  dependencies_.timers->At(dependencies_.clock->Now() + options_.revoke,
                           [self] { self->AbortNow(); });
  const Status posted = NewEnder()->Post([self, communicator] {
    communicator->Revoke();
    self->AbortNow();
  });
  if (!posted.ok()) AbortNow();
}

Executor* Link::NewEnder() {
  std::shared_ptr<Executor> ender = dependencies_.threads("cairn-link-end");
  MutexLock lock(mu_);
  // A thread drops its tasks when nobody has it any more.
  return enders_.emplace_back(std::move(ender)).get();
}

void Link::AbortNow() {
  std::shared_ptr<Communicator> communicator;
  {
    MutexLock lock(mu_);
    if (std::exchange(aborting_, true)) return;
    communicator = communicator_;
  }
  const auto self = shared_from_this();
  dependencies_.timers->At(dependencies_.clock->Now() + options_.abort,
                           [self] { self->Abandon(); });
  // Not the thread of Revoke, which may hang there.
  const Status posted = NewEnder()->Post([self, communicator] {
    communicator->Abort();
    self->Aborted();
  });
  if (!posted.ok()) Abandon();
}

void Link::Aborted() {
  std::shared_ptr<void> kept, held;
  std::shared_ptr<Communicator> communicator;
  {
    MutexLock lock(mu_);
    aborted_ = true;
    communicator = std::move(communicator_);
    if (!busy_) {
      kept = std::move(kept_);
      held = std::move(held_);
    }
  }
  kept.reset();
  held.reset();
  Finish(State::kEnded);
}

void Link::Abandon() { Finish(State::kAbandoned); }

void Link::Finish(State state) {
  {
    MutexLock lock(mu_);
    if (state_ > State::kEnding) return;
    state_ = state;
  }
  events_.ended(*this, state == State::kAbandoned);
}

Link::State Link::state() const {
  MutexLock lock(mu_);
  return state_;
}

bool Link::puts() const {
  MutexLock lock(mu_);
  return puts_;
}

TimePoint Link::used() const {
  MutexLock lock(mu_);
  return used_;
}

bool Link::quiet() const {
  MutexLock lock(mu_);
  return aborted_ && !busy_;
}

}  // namespace cairn::link
