#include "common/tenants/tenant_terms.h"

#include <charconv>

namespace cairn {

Result<std::map<std::string, TenantTerms>> ParseTenantTerms(const std::vector<std::string>& entries,
                                                            const std::string& setting,
                                                            int32_t least, int32_t greatest) {
  std::map<std::string, TenantTerms> tenants;
  for (const std::string& entry : entries) {
    const auto wrong = [&](const std::string& what) {
      return InvalidArgument("{}: got '{}', expected NAME=WEIGHT or NAME=WEIGHT:PRIORITY, {}",
                             setting, entry, what);
    };
    const size_t equals = entry.rfind('=');
    if (equals == std::string::npos || equals == 0) return wrong("with a name");
    TenantTerms terms;
    const char* at = entry.data() + equals + 1;
    const char* const end = entry.data() + entry.size();
    auto parsed = std::from_chars(at, end, terms.weight);
    if (parsed.ec != std::errc() || !(terms.weight >= 0.001 && terms.weight <= 1000)) {
      return wrong("WEIGHT from 0.001 to 1000");
    }
    if (parsed.ptr != end) {
      if (*parsed.ptr != ':') return wrong("nothing after WEIGHT but :PRIORITY");
      parsed = std::from_chars(parsed.ptr + 1, end, terms.max_priority);
      if (parsed.ec != std::errc() || parsed.ptr != end || terms.max_priority < least ||
          terms.max_priority > greatest) {
        return wrong(fmt::format("PRIORITY from {} to {}", least, greatest));
      }
    }
    if (!tenants.emplace(entry.substr(0, equals), terms).second) return wrong("each name once");
  }
  return tenants;
}

}  // namespace cairn
