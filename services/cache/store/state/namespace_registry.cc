#include "services/cache/store/state/namespace_registry.h"

#include <algorithm>

namespace cairn::cache {

Status NoNamespace(const Fingerprint& fingerprint) {
  return Errorf(StatusCode::kNotFound, "field 'fingerprint': no namespace {}; open it first",
                fingerprint.Hex());
}

NamespacePtr NamespaceRegistry::Find(const Fingerprint& fingerprint) const {
  MutexLock lock(mu_);
  const auto it = by_fingerprint_.find(fingerprint);
  return it == by_fingerprint_.end() ? nullptr : it->second;
}

Result<NamespacePtr> NamespaceRegistry::Get(const Fingerprint& fingerprint,
                                            std::string_view tenant) const {
  NamespacePtr state;
  {
    MutexLock lock(mu_);
    const auto it = by_fingerprint_.find(fingerprint);
    // Others' calls do not keep it, either.
    if (it != by_fingerprint_.end() && (tenant.empty() || it->second->spec.tenant == tenant)) {
      state = it->second;
      state->last_use = ++uses_;
    }
  }
  if (state == nullptr) return NoNamespace(fingerprint);
  CAIRN_RETURN_IF_ERROR(state->readable());
  return state;
}

Result<NamespacePtr> NamespaceRegistry::GetToDrop(const Fingerprint& fingerprint) const {
  NamespacePtr state = Find(fingerprint);
  if (state == nullptr) return NoNamespace(fingerprint);
  return state;
}

std::shared_ptr<const NamespaceRegistry::List> NamespaceRegistry::All() const {
  MutexLock lock(mu_);
  return all_;
}

size_t NamespaceRegistry::CountOf(const std::string& tenant) const {
  const auto it = by_tenant_.find(tenant);
  return it == by_tenant_.end() ? 0 : it->second;
}

size_t NamespaceRegistry::ShareOf(const std::string& tenant) const {
  const size_t others = by_fingerprint_.size() - CountOf(tenant);
  return std::max<size_t>(1, max_namespaces_ > others ? (max_namespaces_ - others) / 2 : 0);
}

Result<NamespaceRegistry::Opened> NamespaceRegistry::Open(
    const Fingerprint& fingerprint, const std::string& tenant,
    const std::function<NamespacePtr(uint64_t generation)>& make, bool restores) {
  MutexLock lock(mu_);
  const auto it = by_fingerprint_.find(fingerprint);
  if (it != by_fingerprint_.end()) {
    it->second->last_use = ++uses_;
    return Opened{it->second, false};
  }
  if (by_fingerprint_.size() >= max_namespaces_) {
    return Errorf(StatusCode::kResourceExhausted,
                  "namespaces: {} have blocks or are in use, the limit is {} (limits.namespaces)",
                  by_fingerprint_.size(), max_namespaces_);
  }
  if (const size_t share = ShareOf(tenant); !restores && CountOf(tenant) >= share) {
    return Errorf(
        StatusCode::kResourceExhausted,
        "namespaces: {} of tenant '{}' have blocks or are in use; its limit is {}, half of "
        "what others leave of {} (limits.namespaces)",
        CountOf(tenant), tenant, share, max_namespaces_);
  }
  const auto next = next_generation_.find(fingerprint);
  NamespacePtr state = make(next == next_generation_.end() ? 1 : next->second);
  state->last_use = ++uses_;
  state->CountIn(index_bytes_, tenants_.Get(tenant));
  by_fingerprint_.emplace(fingerprint, state);
  ++by_tenant_[tenant];
  Rebuild();
  return Opened{std::move(state), true};
}

std::vector<NamespacePtr> NamespaceRegistry::Unused(const std::string& tenant) const {
  std::vector<std::pair<uint64_t, NamespacePtr>> found;
  {
    MutexLock lock(mu_);
    const bool own = CountOf(tenant) >= ShareOf(tenant);
    for (const auto& [fingerprint, state] : by_fingerprint_) {
      if (state->blocks.load(std::memory_order_relaxed) > 0) continue;
      if (own && state->spec.tenant != tenant) continue;
      found.emplace_back(state->last_use, state);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<NamespacePtr> unused;
  unused.reserve(found.size());
  for (auto& [use, state] : found) unused.push_back(std::move(state));
  return unused;
}

bool NamespaceRegistry::Replace(const NamespacePtr& old, NamespacePtr next) {
  MutexLock lock(mu_);
  const auto it = by_fingerprint_.find(old->fingerprint);
  if (it == by_fingerprint_.end() || it->second != old) return false;
  if (next != nullptr) {
    next->last_use = old->last_use;
    next->CountIn(index_bytes_, tenants_.Get(next->spec.tenant));
    it->second = std::move(next);
  } else {
    by_fingerprint_.erase(it);
    const auto count = by_tenant_.find(old->spec.tenant);
    if (count != by_tenant_.end() && --count->second == 0) by_tenant_.erase(count);
  }
  Rebuild();
  return true;
}

void NamespaceRegistry::RememberGeneration(const Fingerprint& fingerprint, uint64_t next) {
  MutexLock lock(mu_);
  uint64_t& known = next_generation_[fingerprint];
  known = std::max(known, next);
}

void NamespaceRegistry::Rebuild() {
  auto list = std::make_shared<List>();
  list->reserve(by_fingerprint_.size());
  for (const auto& [fingerprint, state] : by_fingerprint_) list->push_back(state);
  all_ = std::move(list);
}

}  // namespace cairn::cache
