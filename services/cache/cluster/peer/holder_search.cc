#include "services/cache/cluster/peer/holder_search.h"

#include <utility>

#include "services/cache/cluster/peer/called_always.h"

namespace cairn::cache {
namespace {

using Outcome = PeerHealth::Outcome;

// The outcome for the member, from the end of a call.
Outcome OutcomeOf(const Patience& patience, const Status& status) {
  switch (status.code()) {
    case StatusCode::kUnavailable:  // A broken connection tells more than a late answer.
      return Outcome::kBroken;
    case StatusCode::kDeadlineExceeded:
      return patience.counts ? Outcome::kFailed : Outcome::kUnknown;
    case StatusCode::kCancelled:  // The link ended on this side.
      return Outcome::kUnknown;
    default:
      return Outcome::kWorked;  // It works, whatever it answered.
  }
}

}  // namespace

// One Find. It lives as long as a call that it has made.
class HolderSearch::Wave : public std::enable_shared_from_this<Wave> {
 public:
  Wave(HolderSearch* search, TimePoint deadline, Done done)
      : search_(*search), deadline_(deadline), done_(std::move(done)) {}

  void Start(std::vector<PromptWaymark> waymarks) {
    std::shared_ptr<const OwnerMap> owners;
    bool both = false;
    {
      MutexLock lock(search_.mu_);
      owners = search_.owners_;
      both = search_.clock_.Now() < search_.owners_since_ + search_.options_.settling;
    }
    // An owner that is skipped leaves its questions to the other one.
    Questions questions;
    {
      MutexLock lock(mu_);
      known_.waymarks = std::move(waymarks);
      for (size_t i = 0; i < known_.waymarks.size() && !owners->empty(); ++i) {
        bool first = true;
        for (const std::string& id : owners->IdsOf(known_.waymarks[i].hash)) {
          if (id != search_.options_.self && !search_.health_.Hopeful(id)) continue;
          if (first || both) {
            questions[id].push_back(i);
          } else {
            second_of_[i] = id;
          }
          first = false;
        }
      }
    }
    Ask(questions);
  }

 private:
  // By owner: numbers of the waymarks.
  using Questions = std::map<std::string, std::vector<size_t>>;

  void Ask(const Questions& questions) {
    std::map<std::string, std::vector<WaymarkHash>> hashes;
    {
      MutexLock lock(mu_);
      // One more, so that answers inside the calls do not end the wave.
      waiting_ += questions.size() + 1;
      for (const auto& [owner, numbers] : questions) {
        for (const size_t i : numbers) hashes[owner].push_back(known_.waymarks[i].hash);
      }
    }
    for (const auto& [owner, numbers] : questions) {
      if (owner == search_.options_.self) {
        Found(numbers, FoundHolders{.holders = search_.directory_.Find(hashes[owner]),
                                    .young = search_.directory_.young()});
        continue;
      }
      const std::optional<Patience> patience = search_.health_.MayAsk(owner, deadline_);
      if (!patience) {
        Found(numbers, Errorf(StatusCode::kCancelled, "member '{}' is skipped", owner));
        continue;
      }
      search_.links_.Find(owner, hashes[owner], *patience,
                          CalledAlways<Result<FoundHolders>>(
                              [self = shared_from_this(), owner = owner, numbers = numbers,
                               patience = *patience](Result<FoundHolders> found) {
                                self->search_.Note(owner, patience, found.status());
                                self->Found(numbers, std::move(found));
                              }));
    }
    OneDone();
  }

  void Found(const std::vector<size_t>& numbers, Result<FoundHolders> found) {
    const bool ok = found.ok() && found->holders.size() == numbers.size();
    const bool in_time = search_.clock_.Now() < deadline_;
    Questions more;
    {
      MutexLock lock(mu_);
      for (size_t k = 0; ok && k < numbers.size(); ++k) {
        for (const Holder& holder : found->holders[k]) {
          // Owners name whom they like. Whoever is no member cannot be asked, and names that are
          // made up must not live on in what is remembered of a match.
          if (holder.id == search_.options_.self || !search_.health_.IsMember(holder.id)) continue;
          known_.tiers[holder.id].emplace(numbers[k], holder.tier);
        }
      }
      if (in_time && (!ok || found->young)) {
        for (const size_t i : numbers) {
          const auto second = second_of_.find(i);
          if (second == second_of_.end()) continue;
          more[second->second].push_back(i);
          second_of_.erase(second);
        }
      }
    }
    if (!more.empty()) Ask(more);
    OneDone();
  }

  void OneDone() {
    KnownHolders known;
    {
      MutexLock lock(mu_);
      if (--waiting_ > 0) return;
      known = std::move(known_);
    }
    done_(std::move(known));
  }

  HolderSearch& search_;
  const TimePoint deadline_;
  const Done done_;
  Mutex mu_;
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  KnownHolders known_ ABSL_GUARDED_BY(mu_);
  std::map<size_t, std::string> second_of_ ABSL_GUARDED_BY(mu_);  // By number of the waymark.
};

HolderSearch::HolderSearch(Options options, Dependencies dependencies)
    : options_(std::move(options)),
      dependencies_(std::move(dependencies)),
      links_(*dependencies_.links),
      directory_(*dependencies_.directory),
      clock_(*dependencies_.clock),
      health_(options_.health, dependencies_.clock) {}

void HolderSearch::SetOwners(std::shared_ptr<const OwnerMap> owners) {
  health_.SetMembers(owners->ids());
  MutexLock lock(mu_);
  owners_ = std::move(owners);
  owners_since_ = clock_.Now();
}

void HolderSearch::Find(const Digest& fingerprint, std::span<const BlockKey> keys,
                        uint32_t block_tokens, TimePoint deadline, Done done) {
  std::make_shared<Wave>(this, deadline, std::move(done))
      ->Start(WaymarksToAsk(WaymarksOf(fingerprint, keys, block_tokens)));
}

void HolderSearch::Note(const std::string& member, const Patience& patience, const Status& status) {
  if (status.code() == StatusCode::kFailedPrecondition) dependencies_.bumps_differ(member);
  health_.End(member, patience, OutcomeOf(patience, status));
}

}  // namespace cairn::cache
