#pragma once
// A cluster whose members say what a test chooses. One thread uses it.

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "tools/cairn/cluster/nodes.h"

namespace cairn::cli {

class FakeNodes final : public ClusterNodes {
 public:
  struct Node {
    client::ClusterMembers view;
    bool answers = true;
    bool knows_namespace = true;
    bool hears_of_bumps = true;  // It hears of the bumps of others, at the next question.
    bool may_admin = true;
    int drains = 0, bumps = 0, drops = 0;
    int answers_while_draining = 3;
  };
  // `size` members "n0", "n1", ... at "n0:1", "n1:1", ... that all see each other.
  explicit FakeNodes(int size) {
    for (int i = 0; i < size; ++i) {
      Node& node = nodes[Address(i)];
      node.view.cluster = "c";
      node.view.self = Member(i);
      for (int other = 0; other < size; ++other) {
        if (other != i) node.view.members.push_back(Member(other));
      }
    }
  }
  static std::string Address(int i) { return fmt::format("n{}:1", i); }
  static client::ClusterMember Member(int i) {
    client::ClusterMember member;
    member.node_id = fmt::format("n{}", i);
    member.address = Address(i);
    member.incarnation = static_cast<uint64_t>(i) + 1;
    member.version = "1";
    member.same_view = true;
    return member;
  }
  Node& at(int i) { return nodes.at(Address(i)); }
  // Node i does not see the other one, and says why.
  void Hide(int i, int other, const std::string& why) {
    std::erase_if(at(i).view.members,
                  [&](const auto& member) { return member.address == Address(other); });
    at(i).view.absent.push_back({.address = Address(other), .reason = why});
  }

  Result<client::ClusterMembers> Members(const std::string& address) override {
    const auto node = Find(address);
    if (!node.ok()) return node.status();
    if ((*node)->drains > 0 && (*node)->answers_while_draining-- == 0) {
      (*node)->answers = false;
      return Away();
    }
    const client::ClusterMembers view = (*node)->view;
    if ((*node)->hears_of_bumps) (*node)->view.bumps_digest = bumps;
    return view;
  }
  Result<client::NodeStats> Stat(const std::string& address) override {
    const auto node = Find(address);
    if (!node.ok()) return node.status();
    client::NodeStats stats;
    stats.tiers = {{.tier = TierKind::kHost, .capacity_bytes = 1 << 30, .used_bytes = 1 << 29}};
    return stats;
  }
  Result<std::vector<client::NamespaceInfo>> Namespaces(const std::string& address) override {
    const auto node = Find(address);
    if (!node.ok()) return node.status();
    if (!(*node)->may_admin) return Errorf(StatusCode::kPermissionDenied, "admins only");
    return std::vector<client::NamespaceInfo>(1);
  }
  Result<client::DropResult> BumpEpoch(const std::string& address, const Digest&) override {
    const auto node = Find(address);
    if (!node.ok()) return node.status();
    if (!(*node)->may_admin) return Errorf(StatusCode::kPermissionDenied, "admins only");
    if (!(*node)->knows_namespace) return Errorf(StatusCode::kNotFound, "unknown");
    ++(*node)->bumps;
    ++bumps;
    return client::DropResult{.namespaces = 1, .hidden_blocks = 5};
  }
  Result<client::DropResult> DropTenant(const std::string& address, std::string_view) override {
    const auto node = Find(address);
    if (!node.ok()) return node.status();
    if (!(*node)->may_admin) return Errorf(StatusCode::kPermissionDenied, "admins only");
    ++(*node)->drops;
    return client::DropResult{.namespaces = 2, .hidden_blocks = 5};
  }
  Result<bool> Drain(const std::string& address) override {
    const auto node = Find(address);
    if (!node.ok()) return node.status();
    ++(*node)->drains;
    return true;
  }

  std::map<std::string, Node> nodes;  // By address.
  uint64_t bumps = 100;               // The bumps that the members hear of.

 private:
  static Status Away() { return Errorf(StatusCode::kUnavailable, "connection refused"); }
  Result<Node*> Find(const std::string& address) {
    const auto it = nodes.find(address);
    if (it == nodes.end() || !it->second.answers) return Away();
    return &it->second;
  }
};

}  // namespace cairn::cli
