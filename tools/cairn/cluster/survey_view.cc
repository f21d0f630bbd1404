#include "tools/cairn/cluster/survey_view.h"

#include <fmt/format.h>

#include "tools/cairn/cluster/figures.h"
#include "tools/cairn/output/table.h"
#include "tools/cairn/output/units.h"

namespace cairn::cli {
namespace {

const char* YesNo(bool value) { return value ? "yes" : "no"; }

std::string Fill(const SurveyedNode& node, TierKind kind) {
  return node.stats ? TierFill(*node.stats, kind) : "-";
}

Json MemberJson(const client::ClusterMember& member) {
  return {{"node_id", member.node_id},
          {"address", member.address},
          {"node_epoch", member.node_epoch},
          {"incarnation", fmt::format("{:016x}", member.incarnation)},
          {"host", member.host},
          {"zone", member.zone},
          {"version", member.version},
          {"leaving", member.leaving}};
}

Json NumbersJson(const client::ClusterNumbers& n) {
  return {{"waymarks", n.waymarks},
          {"directory_waymarks", n.directory_waymarks},
          {"directory_bytes", n.directory_bytes},
          {"directory_forgotten", n.directory_forgotten},
          {"announcing_members", n.announcing_members},
          {"announcements", n.announcements},
          {"failed_announcements", n.failed_announcements},
          {"found_blocks", n.found_blocks},
          {"read_blocks", n.read_blocks},
          {"read_bytes", n.read_bytes},
          {"failed_reads", n.failed_reads},
          {"sent_bytes", n.sent_bytes}};
}

}  // namespace

std::string SurveyText(const Survey& survey, const Terminal& terminal) {
  std::string out =
      survey.cluster.empty() ? "not in a cluster\n" : fmt::format("cluster {}\n", survey.cluster);
  size_t there = 0;
  for (const SurveyedNode& node : survey.nodes) there += node.status.ok();
  Table table({{"node", Align::kLeft},
               {"address", Align::kLeft},
               {"version", Align::kLeft},
               {"epoch", Align::kRight},
               {"sees", Align::kRight},
               {"RAM", Align::kRight},
               {"disk", Align::kRight},
               {"from peers", Align::kRight},
               {"to peers", Align::kRight},
               {"directory", Align::kRight},
               {"lag", Align::kRight}});
  for (const SurveyedNode& node : survey.nodes) {
    if (!node.status.ok()) {
      table.AddRow({node.node_id.empty() ? "?" : node.node_id, node.address,
                    Cell("no answer", Style::kRed)});
      continue;
    }
    const size_t sees = node.view.members.size() + 1;
    const client::ClusterNumbers& numbers = node.view.numbers;
    table.AddRow({node.node_id, node.address, node.view.self.version,
                  Grouped(node.view.self.node_epoch),
                  Cell(fmt::format("{} of {}", sees, survey.nodes.size()),
                       sees == survey.nodes.size() ? Style::kPlain : Style::kRed),
                  Fill(node, TierKind::kHost), Fill(node, TierKind::kDisk),
                  HumanBytes(numbers.read_bytes), HumanBytes(numbers.sent_bytes),
                  HumanBytes(numbers.directory_bytes), Grouped(numbers.announcing_members)});
  }
  out += table.Render(terminal);
  if (survey.differences.empty()) {
    out += fmt::format("{}\n", there == 1 ? "the node is alone"
                                          : "all members see each other and know the same bumps");
  }
  for (const std::string& difference : survey.differences) {
    out += terminal.Paint(difference, Style::kRed) + "\n";
  }
  return out;
}

Json SurveyJson(const Survey& survey) {
  Json nodes = Json::array();
  for (const SurveyedNode& node : survey.nodes) {
    Json entry = {{"node_id", node.node_id}, {"address", node.address}};
    if (!node.status.ok()) {
      entry["error"] = Message(node.status);
      nodes.push_back(std::move(entry));
      continue;
    }
    entry.update(MembersJson(node.view));
    Json sees = Json::array();
    for (const SurveyedNode& other : survey.nodes) {
      if (!other.node_id.empty() && node.Sees(other.node_id)) sees.push_back(other.node_id);
    }
    entry["sees"] = std::move(sees);
    entry["tiers"] = node.stats ? TierFillJson(*node.stats) : Json::object();
    nodes.push_back(std::move(entry));
  }
  return {{"cluster", survey.cluster},
          {"equal_views", survey.differences.empty()},
          {"differences", survey.differences},
          {"nodes", std::move(nodes)}};
}

std::string MembersText(const client::ClusterMembers& view, const Terminal& terminal) {
  std::string out =
      fmt::format("node {}, version {}, epoch {}{}\n", view.self.node_id, view.self.version,
                  view.self.node_epoch, view.self.leaving ? ", draining" : "");
  if (view.cluster.empty()) return out + "not in a cluster\n";
  out += fmt::format("cluster {}, {} other members\n", view.cluster, view.members.size());
  if (view.replaced_by) {
    out += terminal.Paint(
        fmt::format("keeps out: a newer process at {} has its id\n", view.replaced_by->address),
        Style::kRed);
  }
  Table table({{"member", Align::kLeft},
               {"address", Align::kLeft},
               {"host", Align::kLeft},
               {"zone", Align::kLeft},
               {"version", Align::kLeft},
               {"epoch", Align::kRight},
               {"heard", Align::kRight},
               {"same view", Align::kLeft},
               {"same bumps", Align::kLeft},
               {"called", Align::kLeft}});
  for (const client::ClusterMember& member : view.members) {
    table.AddRow({member.node_id, member.address, member.host, member.zone, member.version,
                  Grouped(member.node_epoch), HumanSeconds(member.heard_seconds) + " ago",
                  YesNo(member.same_view), YesNo(member.same_bumps),
                  member.skipped ? Cell("skipped", Style::kRed) : Cell("yes")});
  }
  out += table.Render(terminal);
  for (const client::AbsentMember& absent : view.absent) {
    out += terminal.Paint(fmt::format("no member at {}: {}", absent.address, absent.reason),
                          Style::kRed) +
           "\n";
  }
  return out;
}

Json MembersJson(const client::ClusterMembers& view) {
  Json members = Json::array();
  for (const client::ClusterMember& member : view.members) {
    Json entry = MemberJson(member);
    entry["heard_seconds"] = member.heard_seconds;
    entry["same_view"] = member.same_view;
    entry["same_bumps"] = member.same_bumps;
    entry["skipped"] = member.skipped;
    members.push_back(std::move(entry));
  }
  Json absent = Json::array();
  for (const client::AbsentMember& entry : view.absent) {
    absent.push_back({{"address", entry.address}, {"reason", entry.reason}});
  }
  return {{"cluster", view.cluster},
          {"self", MemberJson(view.self)},
          {"members", std::move(members)},
          {"absent", std::move(absent)},
          {"replaced_by", view.replaced_by ? MemberJson(*view.replaced_by) : Json()},
          {"view_digest", fmt::format("{:016x}", view.view_digest)},
          {"bumps_digest", fmt::format("{:016x}", view.bumps_digest)},
          {"numbers", NumbersJson(view.numbers)}};
}

std::string LocationsText(const client::ClusterLocations& found, const Terminal& terminal) {
  Table table({{"node", Align::kLeft},
               {"blocks", Align::kRight},
               {"stored", Align::kRight},
               {"in RAM", Align::kRight},
               {"on disk", Align::kRight},
               {"ready in", Align::kRight}});
  for (const client::LocatedBlocks& node : found.nodes) {
    table.AddRow({node.node_id, Grouped(node.blocks), HumanBytes(node.bytes),
                  Grouped(node.memory_blocks), Grouped(node.blocks - node.memory_blocks),
                  node.seconds > 0 ? HumanSeconds(node.seconds) : "-"});
  }
  std::string out = table.Render(terminal);
  if (found.silent_members > 0) {
    out += fmt::format("{} members may hold something and did not answer in time\n",
                       found.silent_members);
  }
  return out;
}

Json LocationsJson(const client::ClusterLocations& found) {
  Json nodes = Json::array();
  for (const client::LocatedBlocks& node : found.nodes) {
    nodes.push_back({{"node_id", node.node_id},
                     {"blocks", node.blocks},
                     {"bytes", node.bytes},
                     {"memory_blocks", node.memory_blocks},
                     {"memory_bytes", node.memory_bytes},
                     {"seconds", node.seconds}});
  }
  return {{"nodes", std::move(nodes)}, {"silent_members", found.silent_members}};
}

}  // namespace cairn::cli
