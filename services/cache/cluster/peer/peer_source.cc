#include "services/cache/cluster/peer/peer_source.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/log/log.h"
#include "services/cache/cluster/peer/called_always.h"
#include "services/cache/cluster/peer/timed_end.h"

namespace cairn::cache {

// One Locate. It lives as long as a call that it has made, or its timer.
class PeerSource::Lookup : public std::enable_shared_from_this<Lookup> {
 public:
  Lookup(PeerSource* source, const PeerNamespace& ns, std::span<const BlockKey> keys,
         std::span<const std::string> holders, TimePoint deadline, std::string trace,
         LocateDone done)
      : source_(*source),
        ns_(ns),
        keys_(keys.begin(), keys.end()),
        deadline_(deadline),
        trace_(std::move(trace)),
        end_(&source->timers_),
        told_(holders.begin(), holders.end()),
        done_(std::move(done)) {}

  void Start(uint32_t block_tokens) {
    block_tokens_ = block_tokens;
    // Whoever gave the blocks before these, or was asked for these a moment ago, has them, too. A
    // short rest has no waymark by which others could be found.
    if (const ReadPlan plan = source_.plans_.Find(ns_.fingerprint, keys_.front())) {
      MutexLock lock(mu_);
      told_.insert(told_.end(), plan->begin(), plan->end());
    }
    end_.At(deadline_, [self = shared_from_this()] {
      self->End(Errorf(StatusCode::kDeadlineExceeded, "no member answered in time"));
    });
    AskNextHolder();
  }

 private:
  void Search(uint32_t at) {
    source_.search_.Find(
        ns_.fingerprint, std::span(keys_).subspan(at), block_tokens_, deadline_,
        [self = shared_from_this(), at](KnownHolders known) { self->Found(at, std::move(known)); });
  }
  void Found(uint32_t at, KnownHolders known) {
    {
      MutexLock lock(mu_);
      if (end_.over()) return;
      known_ = std::move(known);
      for (PromptWaymark& waymark : known_.waymarks) waymark.position += at;
    }
    AskNextHolder();
  }

  // The next one of those who were told to have the first key; "": nobody is left. One place is
  // kept for a holder that the directory knows.
  std::string NextTold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!told_.empty() && tried_.size() + 1 < source_.options_.max_holders) {
      std::string member = std::move(told_.front());
      told_.pop_front();
      // A client may name anybody: made-up ids take no place of those that can be asked.
      if (!source_.search_.health().IsMember(member)) continue;
      if (member != source_.options_.self && !tried_.contains(member)) return member;
    }
    return "";
  }

  // The holder that knows most of the waymarks from `at` on without a gap, the faster tier first.
  std::string BestHolder(uint32_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::string best;
    std::pair<size_t, int> best_score{0, 0};
    for (const auto& [id, known] : known_.tiers) {
      if (tried_.contains(id)) continue;
      std::pair<size_t, int> score{0, 0};
      int slowest = 0;
      for (size_t i = 0; i < known_.waymarks.size(); ++i) {
        if (known_.waymarks[i].position < at) continue;
        const auto it = known.find(i);
        if (it == known.end()) break;
        ++score.first;
        slowest = std::max(slowest, static_cast<int>(it->second));
      }
      score.second = -slowest;
      if (score.first > 0 && (best.empty() || score > best_score)) {
        best = id;
        best_score = score;
      }
    }
    return best;
  }

  void AskNextHolder() {
    std::string holder;
    std::optional<Patience> patience;
    uint32_t at = 0;
    bool search = false;
    {
      MutexLock lock(mu_);
      if (end_.over()) return;
      at = reached_;
      while (tried_.size() < source_.options_.max_holders && at < keys_.size()) {
        holder = searched_ ? BestHolder(at) : NextTold();
        if (holder.empty()) {
          search = !std::exchange(searched_, true);
          break;
        }
        tried_.insert(holder);
        patience = source_.search_.health().MayAsk(holder, deadline_);
        if (patience) break;
      }
    }
    if (patience) patience->trace = trace_;
    if (search) return Search(at);
    if (!patience) return End();
    source_.links_.Match(
        holder, ns_, std::span(keys_).subspan(at), PeerLease::kTake, *patience,
        CalledAlways<Result<PeerMatch>>(
            [self = shared_from_this(), holder, at, patience = *patience](Result<PeerMatch> match) {
              self->Matched(holder, at, patience, std::move(match));
            }));
  }

  void Matched(const std::string& holder, uint32_t at, const Patience& patience,
               Result<PeerMatch> match) {
    source_.search_.Note(holder, patience, match.status());
    // The links have ended, for all members.
    if (match.status().code() == StatusCode::kCancelled) return End(match.status());
    {
      MutexLock lock(mu_);
      if (end_.over()) return;
      if (match.ok() && match->blocks > 0) {
        const auto blocks =
            static_cast<uint32_t>(std::min<size_t>(match->blocks, keys_.size() - at));
        // The others that may have it come after the one that said so.
        std::vector<std::string> plan(1, holder);
        for (const auto& [id, known] : known_.tiers) {
          if (id != holder && plan.size() < kMostInPlan) plan.push_back(id);
        }
        source_.plans_.Put(ns_.fingerprint, std::span(keys_).subspan(at, blocks), std::move(plan));
        const double before = located_.runs.empty() ? 0 : located_.runs.back().seconds;
        located_.runs.push_back(
            {.blocks = blocks, .bytes = match->bytes, .seconds = std::max(before, match->seconds)});
        reached_ = at + blocks;
      }
    }
    AskNextHolder();
  }

  // `why`: somebody has not answered. Blocks that were found in time count all the same.
  void End(const Status& why = OkStatus()) {
    if (!end_.Begin()) return;
    LocateDone done;
    Located located;
    {
      MutexLock lock(mu_);
      done = std::move(done_);
      located = std::move(located_);
    }
    for (const SourceRun& run : located.runs) source_.found_blocks_.fetch_add(run.blocks);
    if (!why.ok() && located.runs.empty()) return done(why);
    done(std::move(located));
  }

  // The most members that a read may try for a block that many have.
  static constexpr size_t kMostInPlan = 8;

  PeerSource& source_;
  const PeerNamespace ns_;
  // The caller's are gone when the deadline has passed, and links may still read them.
  const std::vector<BlockKey> keys_;
  const TimePoint deadline_;
  const std::string trace_;
  uint32_t block_tokens_ = 0;
  TimedEnd end_;

  Mutex mu_;
  std::deque<std::string> told_ ABSL_GUARDED_BY(mu_);
  bool searched_ ABSL_GUARDED_BY(mu_) = false;  // The directory was, or is being, asked.
  LocateDone done_ ABSL_GUARDED_BY(mu_);
  KnownHolders known_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> tried_ ABSL_GUARDED_BY(mu_);
  uint32_t reached_ ABSL_GUARDED_BY(mu_) = 0;
  Located located_ ABSL_GUARDED_BY(mu_);
};

namespace {

// Counts the bytes on their way into another sink, and knows whether it wants them.
class CountingSink final : public BlockSink {
 public:
  explicit CountingSink(BlockSink* sink) : sink_(*sink) {}
  Result<std::vector<std::span<std::byte>>> Begin(const SourceBlock& block) override {
    bytes_ = 0;
    for (const SourceBlock::Part& part : block.parts) bytes_ += part.bytes;
    auto rooms = sink_.Begin(block);
    refused_ = rooms.status();
    return rooms;
  }
  Status Finish() override { return sink_.Finish(); }
  uint64_t bytes() const { return bytes_; }
  // Why the last Begin gave no room; OK: it did.
  const Status& refused() const { return refused_; }

 private:
  BlockSink& sink_;
  uint64_t bytes_ = 0;
  Status refused_;
};

}  // namespace

// One Read: holders are asked one after the other. When all that are left are busy, they are asked
// again after a pause, until the deadline.
class PeerSource::BlockRead : public std::enable_shared_from_this<BlockRead> {
 public:
  BlockRead(PeerSource* source, const Digest& fingerprint, const BlockKey& key, TimePoint deadline,
            BlockSink* sink, std::vector<std::string> holders, ReadDone done)
      : source_(*source),
        ns_{fingerprint, source->dependencies_.known(fingerprint).bumps_digest},
        key_(key),
        deadline_(deadline),
        counted_(sink),
        holders_(holders.begin(), holders.end()),
        done_(std::move(done)) {}

  void Next() {
    while (!holders_.empty() && failures_ < source_.options_.max_holders) {
      std::string holder = std::move(holders_.front());
      holders_.pop_front();
      if (holder == source_.options_.self || !tried_.insert(holder).second) continue;
      if (const auto patience = source_.search_.health().MayRead(holder, deadline_)) {
        return Ask(holder, *patience, BytesFrom(holder));
      }
    }
    if ((busy_.empty() && named_.empty()) || source_.clock_.Now() >= deadline_) {
      source_.failed_reads_.fetch_add(1);
      const ReadDone done = std::exchange(done_, nullptr);
      return done(worst_);
    }
    const Duration pause = source_.options_.busy_pause * (1 << std::min(rounds_++, kLongestPause));
    source_.timers_.At(source_.clock_.Now() + pause, [self = shared_from_this()] {
      self->AskAgain();
      self->Next();
    });
  }

 private:
  // Whoever was named first, then whoever was busy: so a herd gets most copies from each other.
  void AskAgain() {
    for (auto* const members : {&named_, &busy_}) {
      for (const std::string& member : *members) {
        tried_.erase(member);
        holders_.push_back(member);
      }
    }
    named_.clear();
    busy_.clear();
  }
  // Adds the members that a busy one named. Each reader has an order of its own, so that not all
  // turn to the same one.
  void Name(const std::vector<std::string>& others) {
    const auto before = [&](const std::string& a, const std::string& b) {
      const auto place = [&](const std::string& id) {
        const std::string all = id + source_.options_.self + std::string(key_.View());
        return Xxh3(std::as_bytes(std::span(all)));
      };
      return place(a) < place(b);
    };
    std::vector<std::string> mine;
    for (const std::string& other : others) {
      if (mine.size() == kMostNamed) break;
      if (!source_.search_.health().IsMember(other)) continue;  // Whoever is busy made it up.
      if (std::find(named_.begin(), named_.end(), other) == named_.end()) mine.push_back(other);
    }
    std::sort(mine.begin(), mine.end(), before);
    holders_.insert(holders_.begin(), mine.begin(), mine.end());
    named_.insert(named_.begin(), mine.begin(), mine.end());
    if (named_.size() > kMostNamed) named_.resize(kMostNamed);
  }

  PeerBytes BytesFrom(const std::string& holder) const {
    const BlockFetcher* const fetcher = source_.dependencies_.fetcher;
    return fetcher != nullptr && fetcher->MayFetch(holder) ? PeerBytes::kMayBeLent
                                                           : PeerBytes::kStreamed;
  }

  void Ask(const std::string& holder, const Patience& patience, PeerBytes bytes) {
    struct Ending {
      Status status;
      PeerReadAnswer answer;
    };
    auto done = CalledAlways<Result<Ending>>(
        [self = shared_from_this(), holder, patience](Result<Ending> end) {
          if (!end.ok()) return self->Ended(holder, patience, end.status(), {});
          if (end->status.ok() && end->answer.lent) {
            return self->Fetch(holder, patience, *end->answer.lent);
          }
          self->Ended(holder, patience, end->status, end->answer);
        });
    source_.links_.Read(holder, ns_, key_, bytes, patience, source_.options_.silence, &counted_,
                        [done = std::move(done)](Status status, PeerReadAnswer answer) {
                          done(Ending{std::move(status), std::move(answer)});
                        });
  }

  // The holder has lent the block.
  void Fetch(const std::string& holder, const Patience& patience, const LentBlock& lent) {
    auto rooms = counted_.Begin(lent.block);
    if (!rooms.ok()) return Ended(holder, patience, rooms.status(), {});
    source_.dependencies_.fetcher->Fetch(
        holder, lent, *std::move(rooms), deadline_,
        [self = shared_from_this(), holder, patience](const Status& moved) {
          self->Fetched(holder, patience, moved);
        });
  }

  void Fetched(const std::string& holder, const Patience& patience, const Status& moved) {
    Status status = moved;
    if (status.ok()) {
      status = counted_.Finish();
      if (!status.ok()) {
        source_.wrong_moves_.fetch_add(1);
        source_.dependencies_.fetcher->NoteWrong(holder, status);
      }
    }
    if (status.ok()) {
      source_.moved_blocks_.fetch_add(1);
      source_.moved_bytes_.fetch_add(counted_.bytes());
      return Ended(holder, patience, status, {});
    }
    // It says nothing of the holder's copy, nor of its network.
    source_.failed_moves_.fetch_add(1);
    Ask(holder, patience, PeerBytes::kStreamed);
  }

  void Ended(const std::string& holder, Patience patience, const Status& status,
             const PeerReadAnswer& answer) {
    patience.counts = answer.silent;
    source_.search_.Note(holder, patience, status);
    if (status.ok()) {
      source_.read_blocks_.fetch_add(1);
      source_.read_bytes_.fetch_add(counted_.bytes());
      const ReadDone done = std::exchange(done_, nullptr);
      return done(status);
    }
    if (status.code() == StatusCode::kDataLoss) source_.NoteWrong(holder, status);
    // This node does not want the bytes, whoever brings them. A block of a shape that is not its
    // namespace's may have the right one elsewhere.
    if (!counted_.refused().ok() && counted_.refused().code() == status.code() &&
        status.code() != StatusCode::kInvalidArgument) {
      source_.failed_reads_.fetch_add(1);
      const ReadDone done = std::exchange(done_, nullptr);
      return done(status);
    }
    // Damage says more than absence.
    if (worst_.code() != StatusCode::kDataLoss) worst_ = status;
    if (status.code() == StatusCode::kCancelled || source_.clock_.Now() >= deadline_) {
      holders_.clear();
      busy_.clear();
      named_.clear();
      return Next();
    }
    if (status.code() == StatusCode::kResourceExhausted) {
      source_.busy_answers_.fetch_add(1);
      // Whoever has just taken the block from a busy member, or takes it now, may have it.
      Name(answer.others);
      if (std::find(named_.begin(), named_.end(), holder) == named_.end()) {
        busy_.push_back(holder);
      }
    } else if (status.code() != StatusCode::kNotFound) {
      ++failures_;
    }
    Next();
  }

  static constexpr size_t kMostNamed = PeerReadAnswer::kMostOthers;
  static constexpr int kLongestPause = 4;  // 2^4 times the first one.

  // One thread at a time uses it: that of the answer before, or of the timer.
  PeerSource& source_;
  const PeerNamespace ns_;
  const BlockKey key_;
  const TimePoint deadline_;
  CountingSink counted_;
  std::deque<std::string> holders_;
  std::set<std::string> tried_;
  // Both are asked again: who was busy, and whom these named, the newest first.
  std::vector<std::string> busy_, named_;
  size_t failures_ = 0;
  int rounds_ = 0;
  Status worst_ = Errorf(StatusCode::kNotFound, "no member is known to have the block");
  ReadDone done_;
};

void PeerSource::NoteWrong(const std::string& member, const Status& status) {
  wrong_reads_.fetch_add(1);
  if (!search_.health().SentWrong(member)) return;
  log::Warn(
      "member_skipped",
      {{"member", member},
       {"reason", "it sent wrong bytes several times"},
       {"last", Message(status)},
       {"seconds",
        log::Num(std::chrono::duration_cast<std::chrono::seconds>(options_.wrong_pause).count())}});
}

PeerSource::PeerSource(Options options, Dependencies dependencies)
    : options_(std::move(options)),
      dependencies_(std::move(dependencies)),
      links_(*dependencies_.links),
      timers_(*dependencies_.timers),
      clock_(*dependencies_.clock),
      search_({.self = options_.self,
               .settling = options_.settling,
               .health = {.answer_time = options_.lookup_deadline,
                          .silence = options_.silence,
                          .wrong_pause = options_.wrong_pause}},
              {.links = dependencies_.links,
               .directory = dependencies_.directory,
               .bumps_differ = dependencies_.bumps_differ,
               .clock = dependencies_.clock}),
      plans_(options_.remembered_blocks) {}

void PeerSource::Locate(const Digest& fingerprint, std::span<const BlockKey> keys,
                        TimePoint deadline, LocateDone done) {
  LocateAt(fingerprint, keys, {}, deadline, {}, std::move(done));
}

void PeerSource::LocateAt(const Digest& fingerprint, std::span<const BlockKey> keys,
                          std::span<const std::string> holders, TimePoint deadline,
                          const std::string& trace, LocateDone done) {
  const Known known = dependencies_.known(fingerprint);
  if (known.block_tokens == 0 || keys.empty()) return done(Located());
  const TimePoint now = clock_.Now();
  // Early enough to tell what was found by then.
  const Duration left = deadline > now ? (deadline - now) / 8 * 7 : Duration(0);
  const TimePoint end = now + std::min(left, options_.lookup_deadline);
  const PeerNamespace ns{fingerprint, known.bumps_digest};
  std::make_shared<Lookup>(this, ns, keys, holders, end, trace, std::move(done))
      ->Start(known.block_tokens);
}

void PeerSource::Read(const Digest& fingerprint, const BlockKey& key, TimePoint deadline,
                      BlockSink* sink, ReadDone done) {
  // Without the namespace its digest is that of members which miss the bump that dropped it.
  if (dependencies_.known(fingerprint).block_tokens == 0) {
    return done(Errorf(StatusCode::kNotFound, "namespace {} is not known here", fingerprint.Hex()));
  }
  std::vector<std::string> holders;
  if (const ReadPlan plan = plans_.Find(fingerprint, key)) holders = *plan;
  std::make_shared<BlockRead>(this, fingerprint, key, deadline, sink, std::move(holders),
                              std::move(done))
      ->Next();
}

}  // namespace cairn::cache
