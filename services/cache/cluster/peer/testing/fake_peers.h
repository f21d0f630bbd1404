#pragma once
// Members of a cluster in memory: each has blocks, a directory, and faults that a test chooses.
// Header-only. Thread-safe, except that members are added before anybody calls them.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "services/cache/cluster/directory/owners.h"
#include "services/cache/cluster/peer/peer_links.h"
#include "services/cache/store/source/testing/fake_block_source.h"

namespace cairn::cache::testing {

class FakePeers final : public PeerLinks {
 public:
  explicit FakePeers(const Clock* clock) : clock_(clock) {}

  struct Member {
    explicit Member(const Clock* clock) : blocks(clock), answers(clock) {}
    FakeBlockSource blocks;   // Its Locate is the member's Match.
    FakeBlockSource answers;  // Delays and faults of its Find: those of Locate.
    Directory directory{{}};
    bool young = false;
    uint64_t bumps_digest = 0;        // The digest of the bumps of all namespaces.
    std::vector<std::string> others;  // Its reads answer that it is busy, and name these.
    std::vector<Holder> made_up;      // Its Find names these for each waymark, too.
    // It lends what it has, if it is asked so: where the parts of a block lie.
    std::map<BlockKey, LentBlock> lends;
    std::atomic<int> finds = 0, matches = 0, leases = 0, reads = 0, lent = 0;
    // Trace ids of matches. For tests in which one thread asks.
    std::vector<std::string> traces;
  };
  Member& Add(const std::string& id) {
    auto& member = members_[id];
    member = std::make_unique<Member>(clock_);
    return *member;
  }
  Member& at(const std::string& id) { return *members_.at(id); }
  std::vector<std::string> ids() const {
    std::vector<std::string> ids;
    for (const auto& [id, member] : members_) ids.push_back(id);
    return ids;
  }
  // All owners of the waymark learn that `holder` has it.
  void Announce(const OwnerMap& owners, const std::string& holder, WaymarkHash hash,
                TierClass tier = TierClass::kMemory) {
    for (const std::string& owner : owners.IdsOf(hash)) {
      auto& told = told_[{holder, owner}];
      Announcement message{.sequence = ++told.sequence,
                           .begins = told.sequence == 1,
                           .complete = true,
                           .adds = {{hash, tier}}};
      told.count += 1;
      told.check ^= hash;
      message.count = told.count;
      message.check = told.check;
      Directory& directory = at(owner).directory;
      if (message.begins) directory.SetMembers(owners.ids());
      CAIRN_CHECK(directory.Apply(holder, 1, message).ok());
    }
  }
  // Gives all answers that are due.
  void RunDue() {
    for (const auto& [id, member] : members_) {
      member->blocks.RunDue();
      member->answers.RunDue();
    }
  }
  // The links end: what waits, and what comes, is destroyed without an answer.
  void DropAll() {
    ended_ = true;
    for (const auto& [id, member] : members_) {
      member->blocks.DropAnswers();
      member->answers.DropAnswers();
    }
  }

  void Find(const std::string& id, const std::vector<WaymarkHash>& waymarks,
            const Patience& patience, FindDone done) override {
    if (ended_) return;
    Member& member = at(id);
    ++member.finds;
    member.answers.Locate(
        {}, {}, patience.deadline,
        [&member, waymarks, done = std::move(done)](const Result<Located>& answer) {
          if (!answer.ok()) return done(answer.status());
          FoundHolders found{.holders = member.directory.Find(waymarks), .young = member.young};
          for (auto& holders : found.holders) {
            holders.insert(holders.end(), member.made_up.begin(), member.made_up.end());
          }
          done(std::move(found));
        });
  }
  void SetAddresses(const std::map<std::string, std::string>&) override {}
  void Hello(const std::string& /*address*/, const PeerHello&, TimePoint, HelloDone done) override {
    done(Errorf(StatusCode::kUnimplemented, "these members only have blocks"));
  }
  void Announce(const std::string& id, const Announcement& message, TimePoint,
                AnnounceDone done) override {
    done(at(id).directory.Apply("announcer", 1, message));
  }
  void ExchangeBumps(const std::string& /*id*/, const BumpPage&, TimePoint,
                     BumpsDone done) override {
    done(BumpPage());
  }
  void Match(const std::string& id, const PeerNamespace& ns, std::span<const BlockKey> keys,
             PeerLease lease, const Patience& patience, MatchDone done) override {
    if (ended_) return;
    Member& member = at(id);
    ++member.matches;
    if (!patience.trace.empty()) member.traces.push_back(patience.trace);
    if (lease == PeerLease::kTake) ++member.leases;
    if (member.bumps_digest != ns.bumps_digest) return done(BumpsDiffer());
    member.blocks.Locate(ns.fingerprint, keys, patience.deadline,
                         [done = std::move(done)](Result<Located> located) {
                           if (!located.ok()) return done(located.status());
                           PeerMatch match;
                           for (const SourceRun& run : located->runs) {
                             match.blocks += run.blocks;
                             match.bytes += run.bytes;
                             match.seconds = run.seconds;
                           }
                           done(match);
                         });
  }
  void Read(const std::string& id, const PeerNamespace& ns, const BlockKey& key, PeerBytes bytes,
            const Patience& patience, Duration silence, BlockSink* sink, ReadDone done) override {
    if (ended_) return;
    Member& member = at(id);
    ++member.reads;
    if (member.bumps_digest != ns.bumps_digest) return done(BumpsDiffer(), {});
    if (!member.others.empty()) {
      return done(Errorf(StatusCode::kResourceExhausted, "busy"), {.others = member.others});
    }
    if (const auto it = member.lends.find(key);
        bytes == PeerBytes::kMayBeLent && it != member.lends.end()) {
      ++member.lent;
      return done(OkStatus(), {.lent = it->second});
    }
    // A member here gives a block at once or not at all, so that it is silent until then.
    const TimePoint silent = clock_->Now() + silence;
    member.blocks.Read(ns.fingerprint, key, std::min(patience.deadline, silent), sink,
                       [this, silent, done = std::move(done)](Status status) {
                         const bool late = status.code() == StatusCode::kDeadlineExceeded;
                         done(std::move(status), {.silent = late && clock_->Now() >= silent});
                       });
  }

 private:
  static Status BumpsDiffer() {
    return Errorf(StatusCode::kFailedPrecondition, "the member knows other bumps");
  }
  struct Told {
    uint64_t sequence = 0, count = 0, check = 0;
  };
  const Clock* const clock_;
  std::atomic<bool> ended_{false};
  std::map<std::string, std::unique_ptr<Member>> members_;
  std::map<std::pair<std::string, std::string>, Told> told_;
};

}  // namespace cairn::cache::testing
