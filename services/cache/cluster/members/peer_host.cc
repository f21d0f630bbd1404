#include "services/cache/cluster/members/peer_host.h"

#include <algorithm>
#include <utility>

#include "services/cache/cluster/members/bump_exchange.h"
#include "services/cache/cluster/members/held_blocks.h"

namespace cairn::cache {
namespace {

constexpr Duration kLease = std::chrono::seconds(5);
constexpr Duration kSilentSession = std::chrono::seconds(60);
constexpr size_t kMostWaymarks = 64;

}  // namespace

void PeerHost::Attach(CacheEngine* engine) {
  engine_ = engine;
  blocks_ = engine->for_peers();
}

void PeerHost::Detach() {
  SetMembers({});
  std::optional<Session> others;
  {
    MutexLock lock(mu_);
    others.swap(session_of_others_);
  }
  if (others) engine_->CloseSession(others->id);
}

void PeerHost::SetMembers(const std::vector<LiveMember>& members) {
  std::vector<SessionId> ended;
  {
    MutexLock lock(mu_);
    absl::flat_hash_map<std::string, Member> known;
    names_.clear();
    for (const LiveMember& member : members) {
      const PeerCaller& caller = member.hello.caller;
      Member& to = known[caller.id];
      names_.emplace(TakerTable::TakerOf(caller.id), caller.id);
      if (const auto before = known_.find(caller.id); before != known_.end()) {
        to.bumps = before->second.bumps;
        if (before->second.incarnation == caller.incarnation) {
          to.session = std::exchange(before->second.session, std::nullopt);
        }
      }
      to.incarnation = caller.incarnation;
      to.older = member.older_incarnations;
    }
    for (const auto& [id, member] : known_) {
      if (member.session) ended.push_back(member.session->id);
    }
    known_ = std::move(known);
  }
  for (const SessionId session : ended) engine_->CloseSession(session);
}

Status PeerHost::Check(const PeerCaller& caller) const {
  if (caller.cluster != cluster_) {
    return Errorf(StatusCode::kPermissionDenied, "field 'cluster': got '{}', expected '{}'",
                  caller.cluster, cluster_);
  }
  MutexLock lock(mu_);
  const auto it = known_.find(caller.id);
  if (it == known_.end()) return OkStatus();
  const std::vector<uint64_t>& older = it->second.older;
  if (std::find(older.begin(), older.end(), caller.incarnation) == older.end()) return OkStatus();
  return Errorf(StatusCode::kPermissionDenied,
                "field 'incarnation': a newer process has the id '{}'", caller.id);
}

Status PeerHost::CheckBumps(const PeerNamespace& ns) const {
  if (blocks_->BumpsDigestOf(ns.fingerprint) == ns.bumps_digest) return OkStatus();
  return Errorf(StatusCode::kFailedPrecondition,
                "namespace {}: this member knows other bumps than the caller",
                ns.fingerprint.Hex());
}

PeerHelloAnswer PeerHost::Hello(const PeerHello& hello) {
  // A stranger gets an answer, too: it shows him what does not fit.
  (void)members_.Greeted(hello, clock_.Now());
  return {.callee = self_(),
          .announced = directory_.SequenceOf(hello.caller.id, hello.caller.incarnation)};
}

Status PeerHost::Announce(const PeerCaller& caller, const Announcement& message) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  // Another process with this node's id, on its way to a member that had this address before. It
  // would take the place of what this node tells itself, and nobody would notice: it does not greet
  // itself.
  if (caller.id == self_().caller.id) {
    return Errorf(StatusCode::kPermissionDenied, "field 'id': got '{}', the id of this node",
                  caller.id);
  }
  return directory_.Apply(caller.id, caller.incarnation, message);
}

Result<FoundHolders> PeerHost::Find(const PeerCaller& caller,
                                    std::span<const WaymarkHash> waymarks) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  if (waymarks.empty() || waymarks.size() > kMostWaymarks) {
    return InvalidArgument("field 'waymarks': got {}, expected 1 to {}", waymarks.size(),
                           kMostWaymarks);
  }
  return FoundHolders{.holders = directory_.Find(waymarks), .young = directory_.young()};
}

Result<PeerHost::Place> PeerHost::PlaceOf(const PeerCaller& caller) {
  MutexLock lock(mu_);
  const auto it = known_.find(caller.id);
  const bool member = it != known_.end() && it->second.incarnation == caller.incarnation;
  std::optional<Session>& session = member ? it->second.session : session_of_others_;
  if (!session) {
    CAIRN_ASSIGN_OR_RETURN(
        const SessionId opened,
        engine_->OpenSession(member ? "peer " + caller.id : "peers that are no members"));
    session = Session{.id = opened};
  }
  session->used = clock_.Now();
  return Place{.session = session->id, .member = member};
}

bool PeerHost::IsMember(const PeerCaller& caller) const {
  MutexLock lock(mu_);
  const auto it = known_.find(caller.id);
  return it != known_.end() && it->second.incarnation == caller.incarnation;
}

uint64_t PeerHost::bytes() const {
  MutexLock lock(mu_);
  return takers_.bytes() + known_.capacity() * (sizeof(std::string) + sizeof(Member) + 1) +
         names_.capacity() * (sizeof(TakerTable::Taker) + sizeof(std::string) + 1);
}

size_t PeerHost::sessions() const {
  MutexLock lock(mu_);
  const auto have_one = [](const auto& entry) { return entry.second.session.has_value(); };
  return static_cast<size_t>(std::count_if(known_.begin(), known_.end(), have_one)) +
         (session_of_others_ ? 1 : 0);
}

Result<PeerMatch> PeerHost::Match(const PeerCaller& caller, const PeerNamespace& ns,
                                  std::span<const BlockKey> keys, PeerLease lease) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  CAIRN_RETURN_IF_ERROR(CheckBumps(ns));
  CAIRN_ASSIGN_OR_RETURN(const Place place, PlaceOf(caller));
  MatchRequest request{.session = place.session,
                       .fingerprint = ns.fingerprint,
                       .keys = keys,
                       .lease_ttl = kLease,
                       .lease = place.member && lease == PeerLease::kTake,
                       .trace = ""};
  Result<MatchResult> result = engine_->Match(request);
  if (!result.ok() && result.status().code() == StatusCode::kResourceExhausted) {
    request.lease = false;
    result = engine_->Match(request);
  }
  CAIRN_RETURN_IF_ERROR(result.status());
  // A bump may have come meanwhile: these blocks would be newer than the caller's bumps.
  CAIRN_RETURN_IF_ERROR(CheckBumps(ns));
  return ToPeerMatch(*result);
}

Result<std::unique_ptr<PeerHost::Read>> PeerHost::BeginRead(const PeerCaller& caller,
                                                            const PeerNamespace& ns,
                                                            const BlockKey& key,
                                                            std::vector<std::string>* named) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  CAIRN_RETURN_IF_ERROR(CheckBumps(ns));
  const WaymarkHash block = HashForWaymark(ns.fingerprint, key);
  const TakerTable::Taker taker = TakerTable::TakerOf(caller.id);
  std::vector<TakerTable::Taker> takers;
  if (!takers_.Begin(block, taker, &takers)) {
    busy_.fetch_add(1, std::memory_order_relaxed);
    MutexLock lock(mu_);
    for (const TakerTable::Taker other : takers) {
      // Members can be asked. Nobody knows where any others are.
      if (const auto it = names_.find(other); it != names_.end()) named->push_back(it->second);
    }
    return std::unique_ptr<Read>();
  }
  std::unique_ptr<Read> read(new Read(this, block, taker, IsMember(caller)));
  CAIRN_ASSIGN_OR_RETURN(read->read_, blocks_->ReadStored(ns.fingerprint, key));
  CAIRN_RETURN_IF_ERROR(CheckBumps(ns));  // As in Match.
  return read;
}

Result<BumpPage> PeerHost::ExchangeBumps(const PeerCaller& caller, const BumpPage& page) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  if (page.bumps.size() > BumpPage::kMost) {
    return InvalidArgument("field 'bumps': got {}, expected at most {}", page.bumps.size(),
                           BumpPage::kMost);
  }
  CAIRN_RETURN_IF_ERROR(CheckBumpRate(caller));
  return AnswerBumps(blocks_, page, tells_digests_);
}

Status PeerHost::CheckBumpRate(const PeerCaller& caller) {
  MutexLock lock(mu_);
  const auto it = known_.find(caller.id);
  CallRate& rate = it == known_.end() ? bumps_of_others_ : it->second.bumps;
  if (rate.Take(clock_.Now())) return OkStatus();
  return Errorf(StatusCode::kResourceExhausted,
                "ExchangeBumps: '{}' came more often than {} times at once and {} times a second",
                caller.id, CallRate::kAtOnce, CallRate::kPerSecond);
}

void PeerHost::Tick() {
  std::vector<SessionId> silent;
  {
    MutexLock lock(mu_);
    const auto end_if_silent = [&, now = clock_.Now()](std::optional<Session>& session) {
      if (!session || now < session->used + kSilentSession) return;
      silent.push_back(session->id);
      session.reset();
    };
    for (auto& [id, member] : known_) end_if_silent(member.session);
    end_if_silent(session_of_others_);
  }
  for (const SessionId session : silent) engine_->CloseSession(session);
}

}  // namespace cairn::cache
