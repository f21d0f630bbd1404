#pragma once
// The forms of a request's target.

#include <algorithm>
#include <cctype>
#include <string_view>

namespace cairn::http {

// The target of a request line in its usual form, "/path?query". Clients of a forward proxy send
// the whole URL, "http://host/path", which a server has to take for the same (RFC 9112, 3.2.2). Any
// other form stays as it is, such as the "*" of OPTIONS.
inline std::string_view OriginForm(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    const std::string_view begin = target.substr(0, scheme.size());
    const bool same =
        std::equal(begin.begin(), begin.end(), scheme.begin(), scheme.end(),
                   [](unsigned char a, unsigned char b) { return std::tolower(a) == b; });
    if (!same) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    return target.empty() ? "/" : target;
  }
  return target;
}

}  // namespace cairn::http
