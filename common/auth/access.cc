#include "common/auth/access.h"

#include <utility>
#include <vector>

#include "common/config/text_file.h"
#include "common/log/log.h"

namespace cairn::auth {

Result<std::unique_ptr<Access>> Access::Open(const std::string& path, const std::string& field,
                                             const Clock* clock) {
  std::unique_ptr<Access> access(new Access(path, clock));
  MutexLock lock(access->mu_);
  CAIRN_ASSIGN_OR_RETURN(access->policy_, access->Read(field));
  access->counts_ = {.loads = 1, .rules = access->policy_->rules()};
  return access;
}

Result<std::shared_ptr<const Policy>> Access::Read(const std::string& field) const {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         config::ReadTextFile(file_.path(), field, Policy::kMaxBytes));
  auto policy = Policy::Parse(text, file_.path());
  if (!policy.ok()) return Annotate(policy.status(), field);
  return policy;
}

std::shared_ptr<const KnownCaller> Access::Know(const Identity& identity) {
  MutexLock lock(mu_);
  return KnowLocked(identity);
}

std::shared_ptr<const KnownCaller> Access::KnowCertificate(std::string_view certificate,
                                                           absl::FunctionRef<Identity()> read) {
  MutexLock lock(mu_);
  const absl::string_view key(certificate.data(), certificate.size());
  if (const auto it = by_certificate_.find(key); it != by_certificate_.end()) return it->second;
  if (by_certificate_.size() >= kMaxKept) by_certificate_.clear();
  return by_certificate_.emplace(key, KnowLocked(read())).first->second;
}

std::shared_ptr<const KnownCaller> Access::KnowLocked(const Identity& identity) {
  if (const auto it = kept_.find(identity); it != kept_.end()) return it->second;
  if (kept_.size() >= kMaxKept) kept_.clear();
  auto known = std::make_shared<const KnownCaller>(
      KnownCaller{.identity = identity, .rights = Rights(policy_->GrantsOf(identity))});
  return kept_.emplace(identity, std::move(known)).first->second;
}

Limits Access::LimitsOf(std::string_view tenant) const {
  MutexLock lock(mu_);
  return policy_->LimitsOf(tenant);
}

std::shared_ptr<const KnownCaller> Access::KnowOperator(uid_t uid) {
  TenantSet all;
  all.Add("*");
  const auto tenants = std::make_shared<const TenantSet>(std::move(all));
  return std::make_shared<const KnownCaller>(
      KnownCaller{.identity = IdentityOfUser(uid),
                  .rights = Rights({{Role::kAdmin, tenants}, {Role::kWriter, tenants}}),
                  .is_operator = true});
}

void Access::Look() {
  MutexLock lock(mu_);
  const auto news = file_.Look(clock_->Now(), !counts_.stale);
  if (news == config::FollowedFile::News::kNone) return;
  auto read = Read("auth.policy");
  counts_.stale = !read.ok();
  if (read.ok()) {
    policy_ = *std::move(read);
    kept_.clear();
    by_certificate_.clear();
    ++counts_.loads;
    counts_.rules = policy_->rules();
    version_.fetch_add(1, std::memory_order_release);
    log::Info("policy_changed", {{"rules", log::Num(counts_.rules)}});
    return;
  }
  if (news != config::FollowedFile::News::kChanged) return;
  ++counts_.failures;
  log::Warn("policy_refused", {{"error", cairn::ToString(read.status())}});
}

Access::Counts Access::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

}  // namespace cairn::auth
