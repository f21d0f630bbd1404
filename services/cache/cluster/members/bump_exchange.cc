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

void BumpExchange::Begin(const std::string& member, uint64_t reason) {
  {
    MutexLock lock(mu_);
    if (clock_.Now() < not_before_[member] || !under_way_.emplace(member, reason).second) return;
    not_before_[member] = clock_.Now() + kPause;
    ++exchanges_;
  }
  Ask(member, {.digest_only = tells_digest_});
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
        if (!answer.ok()) return Failed(member, answer.status());
        // Taking over waits for the disk.
        const Status posted = executor_.Post([this, member, progress, page = *std::move(answer)] {
          Answered(member, progress, page);
        });
        if (!posted.ok()) End(member, false);
      }));
}

void BumpExchange::Answered(const std::string& member, Progress progress, const BumpPage& answer) {
  const Result<size_t> taken = engine_->TakeOverBumps(answer.bumps);
  if (!taken.ok()) {
    log::Warn("bumps_not_taken", {{"member", member}, {"reason", Message(taken.status())}});
    return End(member, false);
  }
  if (*taken > 0) log::Info("bumps_taken", {{"member", member}, {"bumps", log::Num(*taken)}});
  if (answer.digest != 0 && answer.digest == engine_->BumpsDigest()) return End(member, true);
  // A member that leads in circles is left alone.
  const bool forward = answer.next > progress.theirs || answer.next == 0;
  progress.theirs = answer.next == 0 || !forward ? kEnd : answer.next;
  if (progress.theirs == kEnd && progress.mine == kEnd) return End(member, forward);
  Ask(member, progress);
}

void BumpExchange::Failed(const std::string& member, const Status& why) {
  if (why.code() == StatusCode::kResourceExhausted) {
    MutexLock lock(mu_);
    not_before_[member] = clock_.Now() + kLongPause;
  }
  End(member, false);
}

void BumpExchange::End(const std::string& member, bool done) {
  MutexLock lock(mu_);
  const auto ended = under_way_.extract(member);
  if (done && !ended.empty()) settled_[member] = ended.mapped();
  done_once_ |= done;
}

bool BumpExchange::Settled(const std::string& member, uint64_t reason) const {
  MutexLock lock(mu_);
  const auto it = settled_.find(member);
  return it != settled_.end() && it->second == reason;
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
