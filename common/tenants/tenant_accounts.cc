#include "common/tenants/tenant_accounts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cairn/common/status.h"

namespace cairn {

TenantAccounts::TenantAccounts(std::map<std::string, TenantTerms> terms, size_t max_tenants)
    : terms_(std::move(terms)), max_tenants_(max_tenants) {
  for (const auto& [name, tenant] : terms_) CAIRN_CHECK(tenant.weight > 0);
}

uint32_t TenantAccounts::Enter(std::string_view tenant) {
  MutexLock lock(mu_);
  const auto [found, is_new] = ids_.try_emplace(std::string(tenant), next_id_);
  const uint32_t id = found->second;
  if (is_new) {
    ++next_id_;
    Account account{.name = std::string(tenant), .terms = {}};
    const auto terms = terms_.find(account.name);
    if (terms != terms_.end()) account.terms = terms->second;
    accounts_.emplace(id, std::move(account));
  }
  Account& account = accounts_.at(id);
  if (account.requests++ == 0) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [other, there] : accounts_) {
      if (other != id && there.requests > 0) least = std::min(least, there.served);
    }
    account.served =
        std::max(account.served, least < std::numeric_limits<double>::infinity() ? least : floor_);
    if (is_new) ForgetIdle();
  }
  return id;
}

void TenantAccounts::Leave(uint32_t id) {
  MutexLock lock(mu_);
  Account& account = accounts_.at(id);
  CAIRN_CHECK(account.requests > 0);
  if (--account.requests == 0) floor_ = std::max(floor_, account.served);
}

void TenantAccounts::Charge(uint32_t id, double tokens) {
  MutexLock lock(mu_);
  Account& account = accounts_.at(id);
  account.served += tokens / account.terms.weight;
}

TenantAccounts::Standing TenantAccounts::StandingOf(uint32_t id) const {
  MutexLock lock(mu_);
  const auto found = accounts_.find(id);
  if (found == accounts_.end()) return {};
  const Account& account = found->second;
  return {account.served, account.terms.weight, account.terms.max_priority};
}

size_t TenantAccounts::size() const {
  MutexLock lock(mu_);
  return accounts_.size();
}

void TenantAccounts::ForgetIdle() {
  size_t idle = 0;
  for (const auto& [id, account] : accounts_) idle += account.requests == 0 ? 1 : 0;
  for (auto it = accounts_.begin(); it != accounts_.end() && idle > max_tenants_;) {
    if (it->second.requests > 0) {
      ++it;
      continue;
    }
    ids_.erase(it->second.name);
    it = accounts_.erase(it);
    --idle;
  }
}

}  // namespace cairn
