#pragma once
// The ways on which a node's blocks travel to their readers, each with a queue of its own.
// Thread-safe.
//
//   every other tier ──► host ──► every faster tier
//
// Every reader can use what lies in host: those who wait for a block of another tier ask for it
// there. A faster tier than host is filled with what was read from host.

#include <memory>

#include "services/cache/store/mover/promoter.h"

namespace cairn::cache {

class Promoters {
 public:
  // One for each way between two tiers that the node has.
  Promoters(NodeContext* context, Evictor* evictor);

  // nullptr for host itself, and when the node has no such tier.
  Promoter* IntoHost(TierKind source) const { return into_host_[source].get(); }
  // nullptr unless the node has such a tier and it is faster than host.
  Promoter* FromHost(TierKind target) const { return from_host_[target].get(); }
  // The node has a tier that is faster than host.
  bool fills() const { return fills_; }

  void Kick();
  size_t depth() const;  // Waiting moves.
  MoveQueue::Stats GetStats() const;

 private:
  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    for (const auto* promoters : {&into_host_, &from_host_}) {
      for (const auto& promoter : *promoters) {
        if (promoter != nullptr) visit(*promoter);
      }
    }
  }

  ByTier<std::unique_ptr<Promoter>> into_host_;
  ByTier<std::unique_ptr<Promoter>> from_host_;
  bool fills_ = false;
};

}  // namespace cairn::cache
