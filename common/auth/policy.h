#pragma once
// The file that says who may do what.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "cairn/common/status.h"
#include "common/auth/identity.h"
#include "common/auth/role.h"

namespace cairn::auth {

// A text in which each `*` stands for any characters but those that end a part of a name: `/` in
// URIs, `.` in DNS names.
class Pattern {
 public:
  // `separator`: the character that `*` does not stand for; 0: it stands for any.
  Pattern(std::string text, char separator) : text_(std::move(text)), separator_(separator) {}
  bool Matches(std::string_view name) const;
  friend bool operator==(const Pattern&, const Pattern&) = default;

 private:
  std::string text_;
  char separator_;
};

// Some tenants, by their names and by patterns.
class TenantSet {
 public:
  void Add(const std::string& pattern);
  bool Contains(std::string_view tenant) const;
  bool ContainsAll() const { return all_; }  // Also those that nobody has named yet.
  friend bool operator==(const TenantSet&, const TenantSet&) = default;

 private:
  absl::flat_hash_set<std::string> names_;
  std::vector<Pattern> patterns_;
  bool all_ = false;
};

// The roles of one caller, each for some tenants. Does not change; threads may share it.
class Rights {
 public:
  struct Grant {
    Role role;
    std::shared_ptr<const TenantSet> tenants;
  };
  explicit Rights(std::vector<Grant> grants) : grants_(std::move(grants)) {}

  bool May(Role role) const;  // For at least one tenant.
  bool May(Role role, std::string_view tenant) const;
  bool MayForAll(Role role) const;  // See TenantSet::ContainsAll.
  // The same grants in the same order.
  friend bool operator==(const Rights& a, const Rights& b);

 private:
  std::vector<Grant> grants_;
};

// The limits of a tenant on a node. Room is in bytes.
struct Limits {
  uint64_t memory = UINT64_MAX, disk = UINT64_MAX;  // At most.
  // As long as it has no more, others take nothing away from it.
  uint64_t guaranteed_memory = 0, guaranteed_disk = 0;
  uint64_t bytes_per_second = UINT64_MAX;  // Read and written.
  uint64_t sessions = UINT64_MAX;          // Open at a time.
  bool operator==(const Limits&) const = default;
};

// A policy:
//
//   rules:
//     - identity: uri:spiffe://prod.example/ns/*/sa/engine
//       role: writer
//       tenants: [acme, team-*]
//   limits:
//     - tenants: [team-*]
//       memory: 4GiB
//       guaranteed_memory: 1GiB
//       disk: 100GiB
//       guaranteed_disk: 20GiB
//       bytes_per_second: 2GiB
//       sessions: 64
//
// A caller may do what all rules grant together that one of its names fits. A peer is one for all
// tenants. A tenant has the limits of the first entry that names it, by itself: team-a and team-b
// may have 4GiB each. Does not change; threads may share it.
class Policy {
 public:
  static constexpr size_t kMaxBytes = 1 << 20;
  static constexpr size_t kMaxRules = 10'000;
  static constexpr size_t kMaxTenants = 100'000;  // Names and patterns of all rules and limits.

  // INVALID_ARGUMENT, with `source` and the line: not YAML, or a field is unknown, missing, given
  // twice or wrong. A policy without rules is an error, not one that lets nobody in: a file that is
  // just being written must not lock everybody out.
  static Result<std::shared_ptr<const Policy>> Parse(const std::string& text,
                                                     const std::string& source);

  // Looks at every rule.
  std::vector<Rights::Grant> GrantsOf(const Identity& identity) const;

  // Looks at every entry.
  Limits LimitsOf(std::string_view tenant) const;

  size_t rules() const { return rules_.size(); }

 private:
  struct Rule {
    Pattern identity;
    Rights::Grant grant;
  };
  struct LimitsEntry {
    TenantSet tenants;
    Limits limits;
  };
  std::vector<Rule> rules_;
  std::vector<LimitsEntry> limits_;
};

}  // namespace cairn::auth
