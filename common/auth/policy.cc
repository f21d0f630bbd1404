#include "common/auth/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "common/config/config.h"
#include "common/config/yaml_document.h"
#include "common/tenants/tenant_name.h"

namespace cairn::auth {
namespace {

constexpr size_t kMaxPattern = 1024;
constexpr std::string_view kKinds = "uri:, dns: or cn:";

struct Kind {
  std::string_view prefix;
  char separator;
};
// Not `uid:`: who comes over the operators' socket needs no rule, and gRPC tells of no other socket
// who is there. A rule that can never hold must not look as if it did.
constexpr std::array<Kind, 3> kAllKinds = {{{"uri:", '/'}, {"dns:", '.'}, {"cn:", 0}}};

// Reads the parts of one file.
class Reader {
 public:
  explicit Reader(const std::string& source) : source_(source) {}

  template <typename... Args>
  Status At(const YAML::Node& node, fmt::format_string<Args...> format, Args&&... args) const {
    // A node that is not there has no line.
    return InvalidArgument("{} line {}: {}", source_, std::max(node.Mark().line, 0) + 1,
                           fmt::format(format, std::forward<Args>(args)...));
  }

  Result<std::string> Text(const YAML::Node& node, std::string_view field) const {
    if (!node.IsScalar()) return At(node, "{}: expected a text", field);
    const std::string& text = node.Scalar();
    if (text.empty() || text.size() > kMaxPattern) {
      return At(node, "{}: got {} characters, expected 1 to {}", field, text.size(), kMaxPattern);
    }
    return text;
  }

  // The values of a mapping with these keys and no others. The first `needed` must be there; those
  // that are not are undefined.
  template <size_t N>
  Result<std::array<YAML::Node, N>> Fields(const YAML::Node& node, std::string_view field,
                                           const std::array<std::string_view, N>& keys,
                                           size_t needed = N) const {
    if (!node.IsMap()) return At(node, "{}: expected a mapping", field);
    std::array<YAML::Node, N> found;
    found.fill(YAML::Node(YAML::NodeType::Undefined));
    std::array<bool, N> seen{};
    for (const auto& entry : node) {
      CAIRN_ASSIGN_OR_RETURN(const std::string key, Text(entry.first, field));
      const auto at = std::find(keys.begin(), keys.end(), key);
      if (at == keys.end()) {
        return At(entry.first, "{}: got '{}', expected {}", field, key, fmt::join(keys, ", "));
      }
      const auto i = static_cast<size_t>(at - keys.begin());
      if (std::exchange(seen[i], true)) return At(entry.first, "{}: given twice", key);
      found[i].reset(entry.second);
    }
    for (size_t i = 0; i < needed; ++i) {
      if (!seen[i]) return At(node, "{}: missing, expected in each entry of {}", keys[i], field);
    }
    return found;
  }

  Result<Pattern> Identity(const YAML::Node& node) const {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, Text(node, "identity"));
    for (const Kind& kind : kAllKinds) {
      if (!text.starts_with(kind.prefix)) continue;
      if (text.size() == kind.prefix.size()) break;
      // As IdentityOf has it.
      return Pattern(kind.separator == '.' ? absl::AsciiStrToLower(text) : text, kind.separator);
    }
    return At(node, "identity: got '{}', expected a name after {}", text, kKinds);
  }

  Result<auth::Role> Role(const YAML::Node& node) const {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, Text(node, "role"));
    const auto* const at = std::find(std::begin(kRoleNames), std::end(kRoleNames), text);
    if (at != std::end(kRoleNames)) return static_cast<auth::Role>(at - std::begin(kRoleNames));
    return At(node, "role: got '{}', expected {}", text, fmt::join(kRoleNames, ", "));
  }

  Result<TenantSet> Tenants(const YAML::Node& node) {
    if (!node.IsSequence() || node.size() == 0) {
      return At(node, "tenants: expected a list of names, such as [\"*\"] for all");
    }
    // Aliases make long lists out of few bytes.
    tenants_ += node.size();
    if (tenants_ > Policy::kMaxTenants) {
      return At(node, "tenants: got more than {} in all rules and limits", Policy::kMaxTenants);
    }
    TenantSet tenants;
    for (const YAML::Node& entry : node) {
      CAIRN_ASSIGN_OR_RETURN(const std::string text, Text(entry, "tenants"));
      std::string name = text;  // Without stars.
      std::erase(name, '*');
      if (const Status valid = name.empty() ? OkStatus() : CheckTenant(name); !valid.ok()) {
        return At(entry, "tenants: {}", Message(valid));
      }
      tenants.Add(text);
    }
    return tenants;
  }

  // Bytes; `otherwise` if the field is not there.
  Result<uint64_t> Bytes(const YAML::Node& node, std::string_view field, uint64_t otherwise) const {
    if (!node.IsDefined()) return otherwise;
    CAIRN_ASSIGN_OR_RETURN(const std::string text, Text(node, field));
    const auto bytes = config::ParseBytes(text);
    if (!bytes.ok()) return At(node, "{}: {}", field, Message(bytes.status()));
    return *bytes;
  }

  Result<uint64_t> Count(const YAML::Node& node, std::string_view field, uint64_t otherwise) const {
    if (!node.IsDefined()) return otherwise;
    CAIRN_ASSIGN_OR_RETURN(const std::string text, Text(node, field));
    uint64_t count = 0;
    if (!absl::SimpleAtoi(text, &count)) {
      return At(node, "{}: got '{}', expected a whole number", field, text);
    }
    return count;
  }

  Result<auth::Limits> Limits(const YAML::Node& node, TenantSet* tenants) {
    CAIRN_ASSIGN_OR_RETURN(const auto fields,
                           Fields<7>(node, "limits",
                                     {"tenants", "memory", "guaranteed_memory", "disk",
                                      "guaranteed_disk", "bytes_per_second", "sessions"},
                                     1));
    CAIRN_ASSIGN_OR_RETURN(*tenants, Tenants(fields[0]));
    auth::Limits limits;
    CAIRN_ASSIGN_OR_RETURN(limits.memory, Bytes(fields[1], "memory", UINT64_MAX));
    CAIRN_ASSIGN_OR_RETURN(limits.guaranteed_memory, Bytes(fields[2], "guaranteed_memory", 0));
    CAIRN_ASSIGN_OR_RETURN(limits.disk, Bytes(fields[3], "disk", UINT64_MAX));
    CAIRN_ASSIGN_OR_RETURN(limits.guaranteed_disk, Bytes(fields[4], "guaranteed_disk", 0));
    CAIRN_ASSIGN_OR_RETURN(limits.bytes_per_second,
                           Bytes(fields[5], "bytes_per_second", UINT64_MAX));
    CAIRN_ASSIGN_OR_RETURN(limits.sessions, Count(fields[6], "sessions", UINT64_MAX));
    if (limits == auth::Limits()) {
      return At(node,
                "limits: an entry without one, expected memory, disk, guaranteed_memory, "
                "guaranteed_disk, bytes_per_second or sessions");
    }
    if (limits.bytes_per_second == 0) {
      return At(fields[5], "bytes_per_second: got 0, expected at least 1");
    }
    if (limits.guaranteed_memory > limits.memory) {
      return At(fields[2], "guaranteed_memory: got more than memory");
    }
    if (limits.guaranteed_disk > limits.disk) {
      return At(fields[4], "guaranteed_disk: got more than disk");
    }
    return limits;
  }

 private:
  const std::string& source_;
  size_t tenants_ = 0;  // So far.
};

}  // namespace

bool Pattern::Matches(std::string_view name) const {
  // Goes back to the last star only: it stands for one character more then.
  size_t t = 0, n = 0;
  struct Star {
    size_t behind, end;  // In the text behind it; in the name where it ends.
  };
  std::optional<Star> star;
  while (n < name.size()) {
    if (t < text_.size() && text_[t] == '*') {
      star = Star{++t, n};
    } else if (t < text_.size() && text_[t] == name[n]) {
      ++t;
      ++n;
    } else if (star && (separator_ == 0 || name[star->end] != separator_)) {
      t = star->behind;
      n = ++star->end;
    } else {
      return false;
    }
  }
  return text_.find_first_not_of('*', t) == std::string::npos;
}

void TenantSet::Add(const std::string& pattern) {
  if (pattern.find_first_not_of('*') == std::string::npos) {
    all_ = true;
  } else if (pattern.find('*') == std::string::npos) {
    names_.insert(pattern);
  } else {
    patterns_.emplace_back(pattern, 0);
  }
}

bool TenantSet::Contains(std::string_view tenant) const {
  return all_ || names_.contains(absl::string_view(tenant.data(), tenant.size())) ||
         std::ranges::any_of(patterns_,
                             [&](const Pattern& pattern) { return pattern.Matches(tenant); });
}

bool Rights::May(Role role) const {
  return std::ranges::any_of(grants_,
                             [&](const Grant& grant) { return Includes(grant.role, role); });
}

bool Rights::May(Role role, std::string_view tenant) const {
  return std::ranges::any_of(grants_, [&](const Grant& grant) {
    return Includes(grant.role, role) && grant.tenants->Contains(tenant);
  });
}

bool operator==(const Rights& a, const Rights& b) {
  return std::ranges::equal(a.grants_, b.grants_,
                            [](const Rights::Grant& one, const Rights::Grant& other) {
                              return one.role == other.role && *one.tenants == *other.tenants;
                            });
}

bool Rights::MayForAll(Role role) const {
  return std::ranges::any_of(grants_, [&](const Grant& grant) {
    return Includes(grant.role, role) && grant.tenants->ContainsAll();
  });
}

Result<std::shared_ptr<const Policy>> Policy::Parse(const std::string& text,
                                                    const std::string& source) {
  auto policy = std::make_shared<Policy>();
  Reader reader(source);
  CAIRN_RETURN_IF_ERROR(config::ReadYaml(text, source, [&](const YAML::Node& root) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const auto top,
                           reader.Fields<2>(root, "the policy", {"rules", "limits"}, 1));
    const YAML::Node& rules = top[0];
    if (!rules.IsSequence() || rules.size() == 0 || rules.size() > kMaxRules) {
      return reader.At(rules, "rules: expected a list of 1 to {} of them", kMaxRules);
    }
    for (const YAML::Node& rule : rules) {
      CAIRN_ASSIGN_OR_RETURN(const auto fields,
                             reader.Fields<3>(rule, "rules", {"identity", "role", "tenants"}));
      CAIRN_ASSIGN_OR_RETURN(Pattern identity, reader.Identity(fields[0]));
      CAIRN_ASSIGN_OR_RETURN(const auth::Role role, reader.Role(fields[1]));
      CAIRN_ASSIGN_OR_RETURN(TenantSet tenants, reader.Tenants(fields[2]));
      if (role == Role::kPeer && !tenants.ContainsAll()) {
        return reader.At(fields[2], "tenants: a peer has blocks of all, expected [\"*\"]");
      }
      policy->rules_.push_back(
          {std::move(identity), {role, std::make_shared<const TenantSet>(std::move(tenants))}});
    }
    const YAML::Node& limits = top[1];
    if (!limits.IsDefined()) return OkStatus();
    if (!limits.IsSequence() || limits.size() > kMaxRules) {
      return reader.At(limits, "limits: expected a list of at most {} of them", kMaxRules);
    }
    for (const YAML::Node& entry : limits) {
      TenantSet tenants;
      CAIRN_ASSIGN_OR_RETURN(const Limits of_them, reader.Limits(entry, &tenants));
      policy->limits_.push_back({std::move(tenants), of_them});
    }
    return OkStatus();
  }));
  return std::shared_ptr<const Policy>(std::move(policy));
}

Limits Policy::LimitsOf(std::string_view tenant) const {
  const auto at = std::ranges::find_if(
      limits_, [&](const LimitsEntry& entry) { return entry.tenants.Contains(tenant); });
  return at == limits_.end() ? Limits() : at->limits;
}

std::vector<Rights::Grant> Policy::GrantsOf(const Identity& identity) const {
  std::vector<Rights::Grant> grants;
  for (const Rule& rule : rules_) {
    if (std::ranges::any_of(identity.names,
                            [&](const std::string& name) { return rule.identity.Matches(name); })) {
      grants.push_back(rule.grant);
    }
  }
  return grants;
}

}  // namespace cairn::auth
