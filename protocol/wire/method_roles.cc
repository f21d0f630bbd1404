#include "protocol/wire/method_roles.h"

#include <unordered_map>
#include <utility>

namespace cairn::wire {
namespace {

using auth::Role;

constexpr std::pair<std::string_view, Role> kRoles[] = {
    // One for a tenant asks for more.
    {"/cairn.v1.Cache/OpenSession", Role::kAny},
    // A namespace without blocks and a lease are what reading takes.
    {"/cairn.v1.Cache/OpenNamespace", Role::kReader},
    {"/cairn.v1.Cache/Match", Role::kReader},
    {"/cairn.v1.Cache/Fetch", Role::kReader},
    {"/cairn.v1.Cache/Prefetch", Role::kReader},
    {"/cairn.v1.Cache/Exists", Role::kReader},
    {"/cairn.v1.Cache/Release", Role::kReader},
    {"/cairn.v1.Cache/RenewLease", Role::kReader},
    {"/cairn.v1.Cache/Stat", Role::kAny},
    {"/cairn.v1.Cache/Watch", Role::kReader},
    {"/cairn.v1.Cache/Reserve", Role::kWriter},
    {"/cairn.v1.Cache/Push", Role::kWriter},
    {"/cairn.v1.Cache/Commit", Role::kWriter},
    {"/cairn.v1.Cache/Abort", Role::kWriter},
    {"/cairn.v1.Cache/Flush", Role::kWriter},
    {"/cairn.v1.Cluster/Members", Role::kAny},
    {"/cairn.v1.Cluster/Locate", Role::kReader},
    {"/cairn.v1.Admin/ListNamespaces", Role::kOperator},
    {"/cairn.v1.Admin/DropNamespace", Role::kAdmin},
    {"/cairn.v1.Admin/DropTenant", Role::kAdmin},
    {"/cairn.v1.Admin/BumpEpoch", Role::kAdmin},
    {"/cairn.v1.Admin/Drain", Role::kAdmin},
    {"/cairn.v1.Peer/Hello", Role::kPeer},
    {"/cairn.v1.Peer/Announce", Role::kPeer},
    {"/cairn.v1.Peer/Find", Role::kPeer},
    {"/cairn.v1.Peer/Match", Role::kPeer},
    {"/cairn.v1.Peer/Read", Role::kPeer},
    {"/cairn.v1.Peer/ExchangeBumps", Role::kPeer},
    {"/cairn.v1.Link/Open", Role::kPeer},
    {"/cairn.v1.Link/Move", Role::kPeer},
    {"/cairn.v1.Link/Close", Role::kPeer},
    // A worker stores what it computes.
    {"/cairn.v1.Worker/Generate", Role::kWriter},
    {"/cairn.v1.Worker/Score", Role::kWriter},
    {"/cairn.v1.Worker/Tokenize", Role::kReader},
    {"/cairn.v1.Worker/GetInfo", Role::kAny},
    {"/cairn.v1.Worker/WatchLoad", Role::kAny},
    {"/cairn.v1.Worker/WaitIdle", Role::kReader},
    {"/cairn.v1.Router/Generate", Role::kWriter},
    {"/cairn.v1.Router/Pick", Role::kWriter},
    {"/cairn.v1.Router/GetInfo", Role::kAny},
};

}  // namespace

std::optional<auth::Role> RoleOf(std::string_view path) {
  static const auto* const roles =
      new std::unordered_map<std::string_view, Role>(std::begin(kRoles), std::end(kRoles));
  const auto it = roles->find(path);
  return it == roles->end() ? std::nullopt : std::optional(it->second);
}

}  // namespace cairn::wire
