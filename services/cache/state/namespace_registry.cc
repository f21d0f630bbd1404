#include "services/cache/state/namespace_registry.h"

namespace cairn::cache {

NamespacePtr NamespaceRegistry::Find(const Fingerprint& fingerprint) const {
  MutexLock lock(mu_);
  const auto it = by_fingerprint_.find(fingerprint);
  return it == by_fingerprint_.end() ? nullptr : it->second;
}

Result<NamespacePtr> NamespaceRegistry::Get(const Fingerprint& fingerprint) const {
  CAIRN_ASSIGN_OR_RETURN(NamespacePtr state, GetToDrop(fingerprint));
  CAIRN_RETURN_IF_ERROR(state->readable());
  return state;
}

Result<NamespacePtr> NamespaceRegistry::GetToDrop(const Fingerprint& fingerprint) const {
  NamespacePtr state = Find(fingerprint);
  if (state == nullptr) {
    return Errorf(StatusCode::kNotFound, "field 'fingerprint': no namespace {}; open it first",
                  fingerprint.Hex());
  }
  return state;
}

std::shared_ptr<const NamespaceRegistry::List> NamespaceRegistry::All() const {
  MutexLock lock(mu_);
  return all_;
}

Result<NamespaceRegistry::Opened> NamespaceRegistry::Open(
    const Fingerprint& fingerprint, const std::function<NamespacePtr(uint64_t generation)>& make) {
  MutexLock lock(mu_);
  const auto it = by_fingerprint_.find(fingerprint);
  if (it != by_fingerprint_.end()) return Opened{it->second, false};
  if (by_fingerprint_.size() >= max_namespaces_) {
    return Errorf(StatusCode::kResourceExhausted, "namespaces: {} are open, the limit is {}",
                  by_fingerprint_.size(), max_namespaces_);
  }
  const auto next = next_generation_.find(fingerprint);
  NamespacePtr state = make(next == next_generation_.end() ? 1 : next->second);
  by_fingerprint_.emplace(fingerprint, state);
  Rebuild();
  return Opened{std::move(state), true};
}

bool NamespaceRegistry::Replace(const NamespacePtr& old, NamespacePtr next) {
  MutexLock lock(mu_);
  const auto it = by_fingerprint_.find(old->fingerprint);
  if (it == by_fingerprint_.end() || it->second != old) return false;
  if (next != nullptr) {
    it->second = std::move(next);
  } else {
    by_fingerprint_.erase(it);
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
