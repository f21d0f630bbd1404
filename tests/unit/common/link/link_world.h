#pragma once
// Links on a fake clock, in one thread: communicators that copy memory of this process, executors
// that run when the test says so, and that can hang.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/link/calls.h"
#include "common/link/communicator.h"
#include "common/link/link.h"
#include "common/link/link_holder.h"

namespace cairn::link::testing {

// What the two ranks of an id share, and what goes wrong.
struct Faults {
  bool never_joins = false;
  bool never_moves = false;
  bool no_puts = false;
  bool may_be_left = false;  // Communicators may never be aborted.
  std::string fail = {};     // "Join", "Issue", "Poll": that call fails from now on.
};
struct Pair {
  bool joined[2] = {false, false};
  const Move* move[2] = {nullptr, nullptr};
  std::vector<CommunicatorMaker::Window> windows[2];
};

class PairCommunicator final : public Communicator {
 public:
  PairCommunicator(std::shared_ptr<Pair> pair, int rank, const Faults* faults,
                   std::vector<std::string>* log)
      : pair_(std::move(pair)), rank_(rank), faults_(*faults), log_(*log) {}
  ~PairCommunicator() override {
    EXPECT_TRUE(aborted_ || faults_.may_be_left) << "it was never aborted";
  }

  Status Join() override {
    CAIRN_RETURN_IF_ERROR(Enter("Join"));
    pair_->joined[rank_] = true;
    return OkStatus();
  }
  Status Issue(const Move& move) override {
    CAIRN_RETURN_IF_ERROR(Enter("Issue"));
    joined_ = true;
    move_ = move;
    pair_->move[rank_] = &move_;
    return OkStatus();
  }
  Result<bool> Poll() override {
    if (faults_.fail == "Poll") return Enter("Poll");
    if (!joined_) return !faults_.never_joins && pair_->joined[0] && pair_->joined[1];
    if (pair_->move[rank_] == nullptr) return true;  // The other rank has copied.
    const Move* const other = pair_->move[1 - rank_];
    if (faults_.never_moves || other == nullptr) return false;
    const Move& to = move_.receives ? move_ : *other;
    const Move& from = move_.receives ? *other : move_;
    EXPECT_EQ(to.parts.size(), from.parts.size());
    EXPECT_EQ(to.way, from.way);
    for (size_t i = 0; i < to.parts.size(); ++i) {
      EXPECT_EQ(to.parts[i].bytes, from.parts[i].bytes);
      uint64_t at = to.parts[i].address;
      if (to.way == Way::kPut) {
        at = pair_->windows[move_.receives ? rank_ : 1 - rank_][from.parts[i].window].address +
             from.parts[i].offset;
      }
      std::memcpy(reinterpret_cast<void*>(at), reinterpret_cast<void*>(from.parts[i].address),
                  to.parts[i].bytes);
    }
    pair_->move[0] = pair_->move[1] = nullptr;
    return true;
  }
  bool puts() const override { return !faults_.no_puts && !pair_->windows[rank_].empty(); }
  void Revoke() override { log_.push_back("revoke"); }
  void Abort() override {
    log_.push_back("abort");
    aborted_ = true;
  }

 private:
  Status Enter(const std::string& call) {
    EXPECT_FALSE(aborted_) << call;
    if (faults_.fail != call) return OkStatus();
    return Errorf(StatusCode::kInternal, "{} failed", call);
  }

  const std::shared_ptr<Pair> pair_;
  const int rank_;
  const Faults& faults_;
  std::vector<std::string>& log_;
  Move move_;
  bool joined_ = false, aborted_ = false;
};

class PairMaker final : public CommunicatorMaker {
 public:
  int32_t version() const override { return 22902; }
  Result<UniqueId> NewId() override {
    if (!id_fails.ok()) return id_fails;
    UniqueId id{};
    id[0] = static_cast<char>(++ids);
    return id;
  }
  std::shared_ptr<Communicator> Make(const UniqueId& id, int rank,
                                     std::vector<Window> windows) override {
    auto& pair = pairs_[id[0]];
    if (pair == nullptr) pair = std::make_shared<Pair>();
    pair->windows[rank] = std::move(windows);
    return std::make_shared<PairCommunicator>(pair, rank, &faults, &log);
  }

  Faults faults;
  std::vector<std::string> log;
  Status id_fails;
  int ids = 0;

 private:
  std::map<char, std::shared_ptr<Pair>> pairs_;
};

// After the maker of its communicators.
class World {
 public:
  World() : timers(&clock) {}

  Link::Dependencies links() {
    return {.timers = &timers, .clock = &clock, .threads = [this](const char* name) {
              auto executor = std::make_shared<ManualExecutor>();
              // A hung thread runs nothing, and keeps its task. Any other one drops its tasks when
              // nobody has it any more.
              if (hang.count(name) == 0) {
                executors_.push_back(executor);
              } else {
                hung_.push_back(executor);
              }
              return executor;
            }};
  }
  // Everything that can go on without time.
  void Run() {
    for (bool ran = true; ran;) {
      ran = timers.RunDue() > 0;
      const auto executors = executors_;
      for (const auto& thread : executors) {
        const auto executor = thread.lock();
        if (executor != nullptr) ran = executor->RunOne() || ran;
      }
    }
  }
  void Advance(Duration by) {
    const TimePoint end = clock.Now() + by;
    for (Run(); clock.Now() < end; Run()) {
      // To the next timer: polling makes many.
      clock.Advance(std::min(end, std::max(timers.next(), clock.Now() + Duration(1))) -
                    clock.Now());
    }
  }

  // At the end of a test: hung threads run after all, and nothing is left that holds on to another.
  void Finish() {
    hang.clear();
    const auto hung = std::exchange(hung_, {});
    executors_.insert(executors_.end(), hung.begin(), hung.end());
    Advance(std::chrono::seconds(20));
  }

  FakeClock clock;
  Timers timers;
  std::set<std::string> hang;  // Names of threads that are made from now on and never run.

 private:
  std::vector<std::weak_ptr<ManualExecutor>> executors_;
  std::vector<std::shared_ptr<ManualExecutor>> hung_;
};

// Calls to holders of the same thread. They may be lost.
class DirectCalls final : public LinkCalls {
 public:
  std::string sender = "reader";  // As the holders see it.
  std::map<std::string, std::shared_ptr<LinkHolder>> holders;
  std::string lost = {};  // "Open" or "Move": it gets no answer, though the holder acts.
  bool down = false;      // Nothing arrives.
  std::vector<std::function<void()>> unanswered;
  std::vector<Way> ways;
  int closes = 0;

  void Open(const std::string& peer, const OpenRequest& request, TimePoint,
            std::function<void(Result<OpenAnswer>)> done) override {
    if (down) return done(Errorf(StatusCode::kUnavailable, "no connection"));
    auto answer = holders.at(peer)->Open(sender, request);
    if (lost != "Open") return done(answer);
    unanswered.push_back([done, answer] { done(answer); });
  }
  void Move(const std::string& peer, const MoveRequest& request, TimePoint,
            std::function<void(Status)> done) override {
    ways.push_back(request.way);
    if (down) return done(Errorf(StatusCode::kUnavailable, "no connection"));
    const Status answer = holders.at(peer)->Move(sender, request);
    if (lost != "Move") return done(answer);
    unanswered.push_back([done, answer] { done(answer); });
  }
  void Close(const std::string& peer, uint64_t epoch, TimePoint,
             std::function<void(Status)> done) override {
    ++closes;
    if (down) return done(Errorf(StatusCode::kUnavailable, "no connection"));
    holders.at(peer)->Close(sender, epoch, std::move(done));
  }
};

}  // namespace cairn::link::testing
