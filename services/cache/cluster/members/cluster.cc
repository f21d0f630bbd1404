#include "services/cache/cluster/members/cluster.h"

#include <algorithm>
#include <utility>

#include "cairn/common/hash.h"
#include "common/log/log.h"
#include "services/cache/cluster/peer/called_always.h"

namespace cairn::cache {
namespace {

constexpr Duration kHelloDeadline = std::chrono::seconds(1);
constexpr int kTicksBetweenSums = 50;  // Ticks between two sums of memory.
constexpr int kFollowedAtOnce = 16;    // Steps of the follower in one tick.

uint64_t HashOf(const std::string& id) { return Xxh3(std::as_bytes(std::span(id))); }

bool TellsBumpDigests(const Cluster::Options& options) {
  return options.self.newest_version >= kPeerVersionWithBumpDigests;
}

PeerSource::Options SourceOptions(const Cluster::Options& options) {
  PeerSource::Options source = options.source;
  source.self = options.self.caller.id;
  return source;
}

}  // namespace

Cluster::Cluster(Options options, const Dependencies& dependencies)
    : options_(std::move(options)),
      links_(*dependencies.links),
      clock_(*dependencies.clock),
      members_(options_.members, options_.self),
      directory_(options_.directory),
      announcer_(options_.announcer),
      sender_({.self = options_.self.caller}, &announcer_, &directory_, &links_, &clock_),
      source_(SourceOptions(options_),
              {.links = &links_,
               .directory = &directory_,
               .known = [this](const Digest& fingerprint) { return KnownOf(fingerprint); },
               .bumps_differ = [this](const std::string& member) { bumps_.Begin(member); },
               .timers = dependencies.timers,
               .clock = &clock_,
               .fetcher = dependencies.fetcher}),
      locator_({}, &source_.search(), &links_, dependencies.timers, &clock_),
      bumps_(TellsBumpDigests(options_), &links_, dependencies.executor, &clock_),
      host_(
          options_.self.caller.cluster, TellsBumpDigests(options_), [this] { return self(); },
          &members_, &directory_, &clock_) {
  UpdateMembers();
}

void Cluster::Attach(CacheEngine* engine) {
  engine_ = engine;
  blocks_ = engine->for_peers();
  bumps_.Attach(blocks_);
  host_.Attach(engine);
  follower_.emplace(engine, &announcer_, &clock_);
  MutexLock lock(mu_);
  attached_ = true;
  bumps_digest_ = blocks_->BumpsDigest();
}

void Cluster::Detach() {
  {
    MutexLock lock(mu_);
    if (!std::exchange(attached_, false)) return;
  }
  follower_.reset();
  host_.Detach();
}

PeerHello Cluster::self() const {
  PeerHello hello = options_.self;
  // A process whose id was taken is no member as long as the other one answers.
  const bool replaced = members_.replaced_by().has_value();
  MutexLock lock(mu_);
  hello.view_digest = view_digest_;
  hello.bumps_digest = bumps_digest_;
  hello.leaving = leaving_ || replaced;
  return hello;
}

PeerSource::Known Cluster::KnownOf(const Digest& fingerprint) const {
  const auto spec = engine_->GetNamespace(fingerprint);
  if (!spec.ok()) return {};
  return {.block_tokens = (*spec)->layout.block_tokens,
          .bumps_digest = blocks_->BumpsDigestOf(fingerprint)};
}

void Cluster::Locate(const Digest& fingerprint, std::span<const BlockKey> keys, TimePoint deadline,
                     Locator::Done done) {
  const PeerSource::Known known = KnownOf(fingerprint);
  if (known.block_tokens == 0 || keys.empty()) return done({});
  locator_.Locate({fingerprint, known.bumps_digest}, keys, known.block_tokens, deadline,
                  std::move(done));
}

void Cluster::OnView(const membership::View& view) { members_.SetView(view); }

void Cluster::Tick() {
  {
    MutexLock lock(mu_);
    if (!attached_) return;
  }
  const uint64_t digest = blocks_->BumpsDigest();
  std::vector<std::pair<std::string, uint64_t>> differ;
  {
    MutexLock lock(mu_);
    const bool news = std::exchange(bumps_digest_, digest) != digest;
    for (const LiveMember& member : live_) {
      const uint64_t theirs = member.hello.bumps_digest;
      if (!news && theirs == digest) continue;
      // A member's last answer is old after an exchange, until it is greeted again.
      const uint64_t parts[] = {digest, theirs, member.hello.caller.incarnation};
      differ.emplace_back(member.hello.caller.id, Xxh3(std::as_bytes(std::span(parts))));
    }
  }
  for (const auto& [member, reason] : differ) {
    if (!bumps_.Settled(member, reason)) bumps_.Begin(member, reason);
  }
  Greet();
  UpdateMembers();
  for (int i = 0; i < kFollowedAtOnce && follower_->Step(); ++i) {
  }
  if (ticks_++ % kTicksBetweenSums == 0) follower_bytes_ = follower_->bytes();
  if (!members_.replaced_by()) sender_.Step();
  directory_.SweepSome();
  host_.Tick();
}

void Cluster::Greet() {
  const std::vector<std::string> due = members_.TakeDue(clock_.Now());
  if (due.empty()) return;
  const PeerHello hello = self();
  std::map<std::string, std::string> ids;  // By address.
  {
    MutexLock lock(mu_);
    for (const LiveMember& member : live_) ids[member.address] = member.hello.caller.id;
  }
  for (const std::string& address : due) {
    // UINT64_MAX: what it has of the announcements cannot be judged.
    uint64_t asked_at = UINT64_MAX;
    if (const auto it = ids.find(address); it != ids.end()) {
      asked_at = sender_.Settled(it->second).value_or(UINT64_MAX);
    }
    links_.Hello(address, hello, clock_.Now() + kHelloDeadline,
                 CalledAlways<Result<PeerHelloAnswer>>(
                     [this, address, asked_at](const Result<PeerHelloAnswer>& answer) {
                       Answered(address, asked_at, answer);
                     }));
  }
}

void Cluster::Answered(const std::string& address, uint64_t asked_at,
                       const Result<PeerHelloAnswer>& answer) {
  const TimePoint now = clock_.Now();
  const auto tell = [&address](const Status& why) {
    log::Warn("no_member", {{"address", address}, {"reason", Message(why)}});
  };
  if (!answer.ok()) {
    if (members_.Failed(address, answer.status(), now)) tell(answer.status());
    return;
  }
  const PeerHello& callee = answer->callee;
  const Status taken = members_.Heard(address, callee, now);
  if (!taken.ok()) return tell(taken);
  if (callee.caller.id == options_.self.caller.id) return;
  {
    MutexLock lock(mu_);
    equal_once_ |= callee.bumps_digest == bumps_digest_;
  }
  if (asked_at != UINT64_MAX) sender_.Check(callee.caller.id, answer->announced, asked_at);
}

void Cluster::UpdateMembers() {
  const TimePoint now = clock_.Now();
  const uint64_t version = members_.version(now);
  {
    MutexLock lock(mu_);
    if (std::exchange(members_version_, version) == version) return;
  }
  // A process whose place was taken is alone, and serves its own clients.
  std::vector<LiveMember> live;
  if (!members_.replaced_by()) live = members_.live(now);
  std::vector<std::string> ids{options_.self.caller.id}, restarted, renewed;
  std::map<std::string, std::string> addresses;
  uint64_t view_digest = HashOf(options_.self.caller.id);
  bool changed = false;
  {
    MutexLock lock(mu_);
    for (const LiveMember& member : live) {
      const std::string& id = member.hello.caller.id;
      ids.push_back(id);
      addresses[id] = member.address;
      view_digest ^= HashOf(id);
      const auto before = std::find_if(live_.begin(), live_.end(), [&](const LiveMember& other) {
        return other.hello.caller.id == id;
      });
      const bool known = before != live_.end();
      if (known && before->hello.caller != member.hello.caller) restarted.push_back(id);
      if (!known || before->hello.caller != member.hello.caller) renewed.push_back(id);
    }
    changed = live != live_ || view_digest != view_digest_;
    view_digest_ = view_digest;
  }
  host_.SetMembers(live);
  {
    MutexLock lock(mu_);
    live_ = std::move(live);
  }
  for (const std::string& id : restarted) sender_.Restart(id);
  for (const std::string& id : renewed) source_.Renew(id);
  if (!changed) return;
  links_.SetAddresses(addresses);
  directory_.SetMembers(ids);
  sender_.SetMembers(ids);
  bumps_.SetMembers(ids);
  const auto owners = std::make_shared<const OwnerMap>(std::move(ids));
  announcer_.SetOwners(owners);
  source_.SetOwners(owners);
  // The others see soon that both views are the same again.
  members_.GreetAllSoon(now);
}

void Cluster::Leave() {
  std::vector<LiveMember> live;
  {
    MutexLock lock(mu_);
    leaving_ = true;
    live = live_;
  }
  const PeerHello hello = self();
  for (const LiveMember& member : live) {
    links_.Hello(member.address, hello, clock_.Now() + kHelloDeadline, [](const auto&) {});
  }
}

bool Cluster::settled() const {
  if (bumps_.done_once()) return true;
  MutexLock lock(mu_);
  return equal_once_ || (members_.asked_all() && live_.empty());
}

uint64_t Cluster::bytes() const {
  return directory_.bytes() + announcer_.bytes() + follower_bytes_ + source_.bytes() +
         host_.bytes();
}

ClusterView Cluster::view() const {
  const TimePoint now = clock_.Now();
  ClusterView view;
  view.self = self();
  view.absent = members_.absent(now);
  view.replaced_by = members_.replaced_by();
  view.view_digest = view.self.view_digest;
  for (const LiveMember& member :
       view.replaced_by ? std::vector<LiveMember>() : members_.live(now)) {
    view.members.push_back(
        {.member = member,
         .since_heard = now - member.heard,
         .same_view = member.hello.view_digest == view.self.view_digest,
         .same_bumps = member.hello.bumps_digest == view.self.bumps_digest,
         .skipped = source_.health().Skips(member.hello.caller.id),
         .sent_wrong = source_.health().SkippedForWrong(member.hello.caller.id)});
  }
  view.waymarks = announcer_.waymarks();
  view.directory_entries = directory_.entries();
  view.directory_bytes = directory_.bytes();
  view.directory_forgotten = directory_.forgotten();
  view.announcements = sender_.messages();
  view.failed_announcements = sender_.failures();
  view.announcing = announcer_.Waiting().size();
  const PeerSource::Counts counts = source_.counts();
  view.found_blocks = counts.found_blocks;
  view.read_blocks = counts.read_blocks;
  view.read_bytes = counts.read_bytes;
  view.failed_reads = counts.failed_reads;
  view.wrong_reads = counts.wrong_reads;
  view.moved_blocks = counts.moved_blocks;
  view.moved_bytes = counts.moved_bytes;
  view.failed_moves = counts.failed_moves;
  view.wrong_moves = counts.wrong_moves;
  view.busy_reads = counts.busy_answers;
  view.sent_bytes = host_.sent_bytes();
  view.busy_answers = host_.busy_answers();
  view.bump_exchanges = bumps_.exchanges();
  return view;
}

}  // namespace cairn::cache
