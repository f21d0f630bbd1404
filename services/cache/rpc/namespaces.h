#pragma once
// Specs of namespaces by fingerprint, so that a Match does not copy a spec to learn its block size.

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "common/concurrency/mutex.h"
#include "services/cache/engine/cache_engine.h"

namespace cairn::cache {

// What a fingerprint stands for never changes, so nothing here goes stale; whether the namespace
// still exists the engine says. Thread-safe.
class NamespaceSpecs {
 public:
  explicit NamespaceSpecs(const CacheEngine* engine) : engine_(engine) {}

  // NOT_FOUND for an unknown fingerprint.
  Result<std::shared_ptr<const NamespaceSpec>> Find(const Fingerprint& fingerprint) {
    {
      MutexLock lock(mu_);
      const auto it = known_.find(fingerprint);
      if (it != known_.end()) return it->second;
    }
    CAIRN_ASSIGN_OR_RETURN(NamespaceSpec spec, engine_->GetNamespace(fingerprint));
    auto shared = std::make_shared<const NamespaceSpec>(std::move(spec));
    MutexLock lock(mu_);
    if (known_.size() >= kCapacity) known_.clear();
    known_[fingerprint] = shared;
    return shared;
  }

 private:
  static constexpr size_t kCapacity = 4096;
  const CacheEngine* const engine_;
  Mutex mu_;
  absl::flat_hash_map<Fingerprint, std::shared_ptr<const NamespaceSpec>> known_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
