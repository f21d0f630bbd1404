#pragma once
// The namespaces of a node. Thread-safe.
//
// Their number is limited, and one tenant may have at most half of what the others leave: with a
// limit of 4096, a tenant alone on a node has at most 2048, and a second one at most 1024 then.
// A namespace counts as used when it is opened, and when a call names it.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/cache/store/state/namespace_state.h"

namespace cairn::cache {

// NOT_FOUND: the answer about a namespace that is not there, and about one of another tenant.
Status NoNamespace(const Fingerprint& fingerprint);

class NamespaceRegistry {
 public:
  using List = std::vector<NamespacePtr>;

  explicit NamespaceRegistry(size_t max_namespaces) : max_namespaces_(max_namespaces) {}

  NamespacePtr Find(const Fingerprint& fingerprint) const;
  // For calls that read or write blocks. NOT_FOUND, which names the fingerprint: there is none, or
  // it is not of this tenant (empty: any). Errors of NamespaceState::readable: it has blocks, but
  // they cannot be read.
  Result<NamespacePtr> Get(const Fingerprint& fingerprint, std::string_view tenant = {}) const;
  // For calls that drop blocks, which works for unreadable ones, too. NOT_FOUND as Get.
  Result<NamespacePtr> GetToDrop(const Fingerprint& fingerprint) const;
  // All namespaces that exist now. Cheap: the list is shared, and made again only when a namespace
  // comes or goes.
  std::shared_ptr<const List> All() const;
  // The tenants that have namespaces or sessions.
  NodeTenants& tenants() { return tenants_; }
  const NodeTenants& tenants() const { return tenants_; }
  // Memory of the blocks of all of them, without what is dropped. Takes no walk over them.
  uint64_t IndexBytes() const { return index_bytes_->load(std::memory_order_relaxed); }

  // Returns the existing namespace, or the one that `make(generation)` returns. `generation` is the
  // one that a namespace must have if it is opened again. `make` runs under the registry's lock, so
  // no drop can happen in between. RESOURCE_EXHAUSTED: there are too many, of
  // this tenant or in all. `restores`: it was here before, and the tenant's share does not matter.
  struct Opened {
    NamespacePtr state;
    bool created = false;
  };
  Result<Opened> Open(const Fingerprint& fingerprint, const std::string& tenant,
                      const std::function<NamespacePtr(uint64_t generation)>& make,
                      bool restores = false);
  // Those without blocks that could go to make room for a namespace of `tenant`, the least recently
  // used first: its own if it has its share, otherwise anybody's.
  std::vector<NamespacePtr> Unused(const std::string& tenant) const;
  // Puts `next` (nullptr: nothing) in the place of `old`. False when `old` is no longer there.
  bool Replace(const NamespacePtr& old, NamespacePtr next);

  // A namespace that is opened again has at least this generation, so that records of a dropped one
  // never come back.
  void RememberGeneration(const Fingerprint& fingerprint, uint64_t next);

 private:
  void Rebuild() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // At least 1.
  size_t ShareOf(const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t CountOf(const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t max_namespaces_;
  // A namespace may outlive the registry.
  const std::shared_ptr<std::atomic<uint64_t>> index_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  NodeTenants tenants_;
  mutable Mutex mu_;
  absl::flat_hash_map<Fingerprint, NamespacePtr> by_fingerprint_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Fingerprint, uint64_t> next_generation_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, size_t> by_tenant_ ABSL_GUARDED_BY(mu_);  // How many.
  mutable uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const List> all_ ABSL_GUARDED_BY(mu_) = std::make_shared<List>();
};

}  // namespace cairn::cache
