#include "clients/cpp/src/core/node_list.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace cairn::client {
namespace {

constexpr size_t kMaxEntries = 256;
constexpr std::string_view kDns = "dns:";

// The host and the port of "host:port".
struct HostPort {
  std::string_view host;
  uint16_t port = 0;
};

std::optional<HostPort> Split(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  HostPort split = {.host = address.substr(0, colon)};
  const char* const end = address.data() + address.size();
  const auto [rest, error] = std::from_chars(address.data() + colon + 1, end, split.port);
  if (error != std::errc() || rest != end || split.port == 0) return std::nullopt;
  return split;
}

bool IsPlain(std::string_view host) {
  return host.find_first_of(":/[] \t,") == std::string_view::npos;
}

bool IsAddress(std::string_view address) {
  if (address.starts_with("unix:")) return address.size() > 5;
  const auto split = Split(address);
  if (!split) return false;
  const std::string_view host = split->host;
  return IsPlain(host) || (host.size() > 2 && host.front() == '[' && host.back() == ']');
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

}  // namespace

Status CheckAddress(std::string_view address) {
  if (IsAddress(address)) return OkStatus();
  return InvalidArgument("field 'address': got '{}', expected host:port or unix:/path", address);
}

Result<NodeList> ParseNodeList(std::string_view text) {
  NodeList list;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view entry = Trimmed(rest.substr(0, comma));
    const auto name = entry.starts_with(kDns) ? Split(entry.substr(kDns.size())) : std::nullopt;
    if (name && IsPlain(name->host)) {
      list.names.push_back({.name = std::string(name->host), .port = name->port});
    } else if (!entry.starts_with(kDns) && IsAddress(entry)) {
      if (std::find(list.addresses.begin(), list.addresses.end(), entry) == list.addresses.end()) {
        list.addresses.emplace_back(entry);
      }
    } else {
      return InvalidArgument(
          "field 'address': got '{}'{}, expected host:port, unix:/path or dns:name:port", entry,
          entry == text ? std::string() : fmt::format(" in '{}'", text));
    }
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  if (list.addresses.size() + list.names.size() > kMaxEntries) {
    return InvalidArgument("field 'address': got {} addresses, expected at most {}",
                           list.addresses.size() + list.names.size(), kMaxEntries);
  }
  return list;
}

}  // namespace cairn::client
