#include "services/cache/cluster/peer/locator.h"

#include <algorithm>
#include <utility>

#include "services/cache/cluster/peer/called_always.h"
#include "services/cache/cluster/peer/timed_end.h"

namespace cairn::cache {

// One Locate. It lives as long as a call that it has made, or its timer.
class Locator::Question : public std::enable_shared_from_this<Question> {
 public:
  Question(Locator* locator, const PeerNamespace& ns, std::span<const BlockKey> keys,
           TimePoint deadline, Done done)
      : locator_(*locator),
        ns_(ns),
        keys_(keys.begin(), keys.end()),
        deadline_(deadline),
        done_(std::move(done)),
        end_(&locator->timers_) {}

  void Start(uint32_t block_tokens) {
    end_.At(deadline_, [self = shared_from_this()] { self->End(); });
    locator_.search_.Find(
        ns_.fingerprint, keys_, block_tokens, deadline_,
        [self = shared_from_this()](const KnownHolders& known) { self->AskAll(known); });
  }

 private:
  void AskAll(const KnownHolders& known) {
    std::vector<std::pair<size_t, std::string>> members;  // By waymarks that they hold.
    for (const auto& [id, waymarks] : known.tiers) members.emplace_back(waymarks.size(), id);
    const size_t asked = std::min(members.size(), locator_.options_.max_members);
    std::partial_sort(members.begin(), members.begin() + static_cast<ptrdiff_t>(asked),
                      members.end(), std::greater<>());
    {
      MutexLock lock(mu_);
      if (end_.over()) return;
      // One more, so that answers inside the calls do not end it.
      waiting_ = asked + 1;
      found_.silent = static_cast<uint32_t>(asked);
    }
    for (size_t i = 0; i < asked; ++i) {
      const std::string& id = members[i].second;
      const auto patience = locator_.search_.health().MayAsk(id, deadline_);
      if (!patience) {
        OneDone();
        continue;
      }
      locator_.links_.Match(
          id, ns_, keys_, PeerLease::kNone, *patience,
          CalledAlways<Result<PeerMatch>>([self = shared_from_this(), id,
                                           patience = *patience](const Result<PeerMatch>& match) {
            self->Answered(id, patience, match);
          }));
    }
    OneDone();
  }

  void Answered(const std::string& id, const Patience& patience, const Result<PeerMatch>& match) {
    locator_.search_.Note(id, patience, match.status());
    if (match.ok()) {
      MutexLock lock(mu_);
      if (!end_.over()) {
        --found_.silent;
        PeerMatch held = *match;
        held.blocks = static_cast<uint32_t>(std::min<size_t>(held.blocks, keys_.size()));
        if (held.blocks > 0) found_.members.push_back({id, held});
      }
    }
    OneDone();
  }

  void OneDone() {
    {
      MutexLock lock(mu_);
      if (--waiting_ > 0) return;
    }
    End();
  }

  void End() {
    if (!end_.Begin()) return;
    Locations found;
    {
      MutexLock lock(mu_);
      found = std::move(found_);
    }
    std::sort(found.members.begin(), found.members.end(), [](const auto& a, const auto& b) {
      if (a.held.blocks != b.held.blocks) return a.held.blocks > b.held.blocks;
      if (a.held.seconds != b.held.seconds) return a.held.seconds < b.held.seconds;
      return a.member < b.member;
    });
    done_(std::move(found));
  }

  Locator& locator_;
  const PeerNamespace ns_;
  const std::vector<BlockKey> keys_;  // Links may still read them when the deadline has passed.
  const TimePoint deadline_;
  const Done done_;
  TimedEnd end_;
  Mutex mu_;
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  Locations found_ ABSL_GUARDED_BY(mu_);
};

void Locator::Locate(const PeerNamespace& ns, std::span<const BlockKey> keys, uint32_t block_tokens,
                     TimePoint deadline, Done done) {
  const TimePoint end = std::min(deadline, clock_.Now() + options_.longest);
  std::make_shared<Question>(this, ns, keys, end, std::move(done))->Start(block_tokens);
}

}  // namespace cairn::cache
