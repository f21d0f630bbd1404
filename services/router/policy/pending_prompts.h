#pragma once
// The prompts that this router sent to one worker and that are not computed yet, by whose they are:
// so that one tenant's load does not count as everybody's wait.

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace cairn::router {

// Not thread-safe.
class PendingPrompts {
 public:
  struct Claim {
    std::string tenant = {};
    int32_t priority = 0;  // As the request says.
    int32_t counted = 0;   // As it counts before other tenants' requests.
    auto operator<=>(const Claim&) const = default;
  };
  // More than 0, by tenant.
  using WeightOf = std::function<double(std::string_view tenant)>;

  void Add(const Claim& claim, double seconds);
  // REQUIRES: Add was called with the same.
  void Remove(const Claim& claim, double seconds);
  bool empty() const { return pending_.empty(); }

  // The part of `wait` seconds, which all prompts together take at the worker, that comes before a
  // request with this claim, which takes `seconds` itself: all prompts of higher priorities and of
  // its own tenant, and of each other tenant no more than that tenant's share while the own tenant
  // gets the prompts that it has and this request (generalised processor sharing: Parekh and
  // Gallager, 1993, as in the worker's queue). Without any pending prompt all of `wait`.
  double ShareOf(double wait, const Claim& claim, double seconds, const WeightOf& weight) const;

 private:
  struct Sum {
    double seconds = 0;
    uint64_t prompts = 0;
  };
  std::map<Claim, Sum> pending_;
};

}  // namespace cairn::router
