#include "services/cache/cluster/members/bump_exchange.h"

#include <utility>

#include "common/log/log.h"
#include "services/cache/cluster/peer/called_always.h"

namespace cairn::cache {
namespace {

constexpr uint64_t kEnd = UINT64_MAX;

}  // namespace

Result<BumpPage> AnswerBumps(PeerEngine* engine, const BumpPage& page, bool tells_digest) {
  CAIRN_RETURN_IF_ERROR(engine->TakeOverBumps(page.bumps).status());
  const uint64_t digest = tells_digest ? engine->BumpsDigest() : 0;
  if (digest != 0 && digest == page.digest) return BumpPage{.digest = digest};
  BumpPage answer = engine->Bumps(page.next, BumpPage::kMost);
  answer.digest = digest;
  return answer;
}

void BumpExchange::SetMembers(const std::vector<std::string>& ids) {
  MutexLock lock(mu_);
  std::map<std::string, Member> known;
  for (const std::string& id : ids) {
    const auto before = known_.find(id);
    known[id] = before == known_.end() ? Member() : before->second;
  }
  known_ = std::move(known);
}

void BumpExchange::Begin(const std::string& member, uint64_t reason) {
  Progress progress{.digest_only = tells_digest_};
  {
    MutexLock lock(mu_);
    const auto it = known_.find(member);
    if (it == known_.end() || it->second.under_way != 0) return;
    if (clock_.Now() < it->second.not_before) return;
    it->second.not_before = clock_.Now() + kPause;
    it->second.reason = reason;
    progress.exchange = it->second.under_way = ++exchanges_;
  }
  Ask(member, progress);
}

void BumpExchange::Ask(const std::string& member, Progress progress) {
  BumpPage page;
  if (progress.mine != kEnd && !std::exchange(progress.digest_only, false)) {
    page = engine_->Bumps(progress.mine, BumpPage::kMost);
    progress.mine = page.next == 0 ? kEnd : page.next;
  }
  page.next = progress.theirs;
  // 0 if this node knows none: then the first page of the member tells whether it does.
  if (tells_digest_) page.digest = engine_->BumpsDigest();
  links_.ExchangeBumps(
      member, page, clock_.Now() + kDeadline,
      CalledAlways<Result<BumpPage>>([this, member, progress](Result<BumpPage> answer) {
        if (!answer.ok()) return Failed(member, progress, answer.status());
        // Taking over waits for the disk.
        const Status posted = executor_.Post([this, member, progress, page = *std::move(answer)] {
          Answered(member, progress, page);
        });
        if (!posted.ok()) End(member, progress, false);
      }));
}

void BumpExchange::Answered(const std::string& member, Progress progress, const BumpPage& answer) {
  const Result<size_t> taken = engine_->TakeOverBumps(answer.bumps);
  if (!taken.ok()) {
    log::Warn("bumps_not_taken", {{"member", member}, {"reason", Message(taken.status())}});
    return End(member, progress, false);
  }
  if (*taken > 0) log::Info("bumps_taken", {{"member", member}, {"bumps", log::Num(*taken)}});
  if (answer.digest != 0 && answer.digest == engine_->BumpsDigest()) {
    return End(member, progress, true);
  }
  // A member that leads in circles is left alone.
  const bool forward = answer.next > progress.theirs || answer.next == 0;
  progress.theirs = answer.next == 0 || !forward ? kEnd : answer.next;
  if (progress.theirs == kEnd && progress.mine == kEnd) return End(member, progress, forward);
  Ask(member, progress);
}

void BumpExchange::Failed(const std::string& member, const Progress& progress, const Status& why) {
  if (why.code() == StatusCode::kResourceExhausted) {
    MutexLock lock(mu_);
    const auto it = known_.find(member);
    if (it != known_.end()) it->second.not_before = clock_.Now() + kLongPause;
  }
  End(member, progress, false);
}

void BumpExchange::End(const std::string& member, const Progress& progress, bool done) {
  MutexLock lock(mu_);
  done_once_ |= done;
  const auto it = known_.find(member);
  // It may have left and come back, with an exchange of its own.
  if (it == known_.end() || it->second.under_way != progress.exchange) return;
  it->second.under_way = 0;
  if (done) it->second.settled = it->second.reason;
}

bool BumpExchange::Settled(const std::string& member, uint64_t reason) const {
  MutexLock lock(mu_);
  const auto it = known_.find(member);
  return it != known_.end() && it->second.settled == reason;
}

size_t BumpExchange::known() const {
  MutexLock lock(mu_);
  return known_.size();
}

bool BumpExchange::done_once() const {
  MutexLock lock(mu_);
  return done_once_;
}

uint64_t BumpExchange::exchanges() const {
  MutexLock lock(mu_);
  return exchanges_;
}

}  // namespace cairn::cache
