#include "common/tenants/tenant_name.h"

#include <algorithm>

namespace cairn {

Status CheckTenant(std::string_view tenant) {
  const bool legal = !tenant.empty() && tenant.size() <= 128 &&
                     std::all_of(tenant.begin(), tenant.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
                     });
  if (legal) return OkStatus();
  return InvalidArgument("tenant: got '{}', expected 1 to 128 characters of [A-Za-z0-9._-]",
                         tenant.substr(0, 128));
}

}  // namespace cairn
