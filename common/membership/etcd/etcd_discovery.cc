#include "common/membership/etcd/etcd_discovery.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/log/log.h"
#include "common/membership/etcd/member_record.h"
#include "common/membership/static_discovery.h"

namespace cairn::membership {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(500);
// Between the end of one watch and the next reading, so that a member of etcd that ends each watch
// is not asked all the time.
constexpr Duration kPause = std::chrono::milliseconds(100);

TimePoint Now() { return SteadyClock::Get().Now(); }

// Between two renewals the third of a lease passes; then each member of etcd may have to be asked.
Duration GraceOf(const EtcdDiscovery::Options& options) {
  return options.ttl +
         static_cast<int>(options.etcd.endpoints.size()) * (options.etcd.timeout + kRetry);
}

std::optional<Member> Decode(const std::string& key, const std::string& record) {
  auto member = DecodeMember(record);
  if (member.ok()) return *std::move(member);
  log::Warn("member_record_refused", {{"key", key}, {"error", Message(member.status())}});
  return std::nullopt;
}

}  // namespace

Result<std::unique_ptr<EtcdDiscovery>> EtcdDiscovery::Create(Options options) {
  auto client = EtcdClient::Create(options.etcd);
  if (!client.ok()) return client.status();
  return std::unique_ptr<EtcdDiscovery>(new EtcdDiscovery(std::move(options), *std::move(client)));
}

EtcdDiscovery::EtcdDiscovery(Options options, std::unique_ptr<EtcdClient> client)
    : options_(std::move(options)), client_(std::move(client)), table_(GraceOf(options_)) {}

EtcdDiscovery::~EtcdDiscovery() { Stop(); }

Status EtcdDiscovery::Start(const Member& self, OnView on_view) {
  if (Status status = CheckMemberAddress(self.address, "cluster.advertise"); !status.ok()) {
    return status;
  }
  // Two processes with one id, after a disk was copied, must see each other.
  key_ = fmt::format("{}{}/{:016x}", options_.prefix, self.id, self.incarnation);
  record_ = EncodeMember(self);
  last_record_ = EncodeMember(self, /*leaving=*/true);
  {
    MutexLock lock(publish_mu_);
    on_view_ = std::move(on_view);
  }
  registering_ = std::thread([this] { KeepRegistered(); });
  following_ = std::thread([this] { Follow(); });
  return OkStatus();
}

void EtcdDiscovery::Stop() {
  {
    MutexLock lock(mu_);
    if (stopping_) return;
    stopping_ = true;
  }
  changed_.NotifyAll();
  client_->Cancel();
  if (registering_.joinable()) registering_.join();
  if (following_.joinable()) following_.join();
  {
    MutexLock lock(publish_mu_);
    on_view_ = nullptr;
  }
  if (lease_ != 0) {
    // Others then need not wait for the end of the lease, nor for that of the grace.
    const Status status = client_->Withdraw(key_, last_record_, lease_);
    if (!status.ok()) {
      log::Warn("member_record_left", {{"key", key_}, {"error", Message(status)}});
    }
  }
}

DiscoveryHealth EtcdDiscovery::health() const {
  MutexLock lock(mu_);
  return health_;
}

void EtcdDiscovery::KeepRegistered() {
  pthread_setname_np(pthread_self(), "etcd-lease");
  for (;;) {
    const Duration wait = Register();
    const TimePoint grace_ends = Publish();
    const Duration until_grace =
        grace_ends == TimePoint::max() ? wait : std::max(Duration(0), grace_ends - Now());
    if (Wait(std::min(wait, until_grace), /*until_own_record_is_missing=*/true)) return;
  }
}

Duration EtcdDiscovery::Register() {
  Duration left = options_.ttl;
  if (lease_ == 0) {
    const auto granted = client_->Grant(options_.ttl);
    Note(granted.status());
    if (!granted.ok()) return kRetry;
    lease_ = *granted;
    written_ = false;
  } else {
    const auto renewed = client_->KeepAlive(lease_);
    Note(renewed.status());
    if (renewed.status().code() == StatusCode::kNotFound) {
      log::Warn("member_lease_lost", {{"key", key_}});
      lease_ = 0;
      return Duration(0);
    }
    if (!renewed.ok()) return kRetry;
    left = *renewed;
  }
  {
    MutexLock lock(mu_);
    if (std::exchange(own_record_missing_, false)) written_ = false;
  }
  if (!written_) {
    const Status status = client_->Put(key_, record_, lease_);
    Note(status);
    // A lease that ended meanwhile is found by the next renewal.
    if (!status.ok()) return kRetry;
    written_ = true;
  }
  // Two renewals may fail before the lease ends.
  return left / 3;
}

void EtcdDiscovery::Follow() {
  pthread_setname_np(pthread_self(), "etcd-watch");
  do {
    FollowOnce();
  } while (!Wait(kPause, /*until_own_record_is_missing=*/false));
}

void EtcdDiscovery::FollowOnce() {
  auto range = client_->Range(options_.prefix, /*any_member=*/false);
  const bool fresh = range.ok();
  Note(range.status());
  if (!fresh) {
    // Without a majority one member still knows what was there.
    range = client_->Range(options_.prefix, /*any_member=*/true);
    if (!range.ok()) {
      Wait(kRetry, /*until_own_record_is_missing=*/false);
      return;
    }
  }
  std::map<std::string, Member> members;
  std::vector<std::string> leaving;
  for (const auto& [key, record] : range->records) {
    if (SaysLeaving(record)) {
      leaving.push_back(key);
    } else if (auto member = Decode(key, record)) {
      members.emplace(key, *std::move(member));
    }
  }
  {
    MutexLock lock(mu_);
    for (const std::string& key : leaving) table_.Leave(key);
    if (fresh) {
      if (!members.contains(key_)) own_record_missing_ = true;
      table_.Replace(std::move(members), Now());
      health_.complete = true;
    } else {
      table_.Add(members);
    }
  }
  changed_.NotifyAll();
  Publish();
  if (!fresh) {
    Wait(kRetry, /*until_own_record_is_missing=*/false);
    return;
  }
  Note(client_->Watch(options_.prefix, range->revision,
                      [this](const std::vector<EtcdEvent>& events) { Apply(events); }));
}

void EtcdDiscovery::Apply(const std::vector<EtcdEvent>& events) {
  {
    MutexLock lock(mu_);
    for (const EtcdEvent& event : events) {
      if (event.deleted) {
        table_.Miss(event.key, Now());
        if (event.key == key_) own_record_missing_ = true;
      } else if (SaysLeaving(event.value)) {
        table_.Leave(event.key);
      } else if (auto member = Decode(event.key, event.value)) {
        table_.Put(event.key, *std::move(member));
      }
    }
  }
  changed_.NotifyAll();
  Publish();
}

void EtcdDiscovery::Note(const Status& status) {
  if (status.code() == StatusCode::kCancelled) return;
  MutexLock lock(mu_);
  // Meanwhile nobody could write a record.
  if (status.ok() && !health_.last.ok()) table_.BeginAgain(Now());
  health_.Note(status, Now());
}

TimePoint EtcdDiscovery::Publish() {
  MutexLock publish(publish_mu_);
  View view;
  TimePoint next;
  {
    MutexLock lock(mu_);
    next = health_.last.ok() ? table_.Expire(Now()) : TimePoint::max();
    if (stopping_) return next;
    view = table_.view();
    // Nothing is known yet.
    if (view.empty() && !health_.complete) return next;
  }
  if (view != published_) {
    published_ = view;
    if (on_view_) on_view_(view);
  }
  return next;
}

bool EtcdDiscovery::Wait(Duration duration, bool until_own_record_is_missing) {
  MutexLock lock(mu_);
  changed_.WaitUntil(mu_, Now() + duration, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ ||
           (until_own_record_is_missing && written_ && lease_ != 0 && own_record_missing_);
  });
  return stopping_;
}

}  // namespace cairn::membership
