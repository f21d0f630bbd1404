#include "services/cache/serve/node/cluster_metrics.h"

#include <algorithm>

namespace cairn::cache {
namespace {

using metrics::Sink;

template <typename Rows, typename Predicate>
double Count(const Rows& rows, Predicate predicate) {
  return static_cast<double>(std::count_if(rows.begin(), rows.end(), predicate));
}

void ShowMembers(const ClusterView& view, Sink& sink) {
  using Row = ClusterView::Row;
  const std::string name = "cairn_cluster_members";
  const std::string help = "Other members, by what this node knows of them.";
  sink.Gauge(name, help, {{"state", "live"}}, metrics::Number(view.members.size()));
  sink.Gauge(name, help, {{"state", "absent"}}, metrics::Number(view.absent.size()));
  sink.Gauge(name, help, {{"state", "skipped"}},
             Count(view.members, [](const Row& row) { return row.skipped; }));
  sink.Gauge(name, help, {{"state", "sent_wrong"}},
             Count(view.members, [](const Row& row) { return row.sent_wrong; }));
  sink.Gauge(name, help, {{"state", "other_view"}},
             Count(view.members, [](const Row& row) { return !row.same_view; }));
  sink.Gauge(name, help, {{"state", "other_bumps"}},
             Count(view.members, [](const Row& row) { return !row.same_bumps; }));
  sink.Gauge("cairn_cluster_replaced",
             "1: a newer process has the id of this node, which keeps out of the cluster.", {},
             view.replaced_by ? 1 : 0);
}

void ShowDirectory(const ClusterView& view, Sink& sink) {
  sink.Gauge("cairn_cluster_waymarks", "Waymarks that this node holds.", {},
             metrics::Number(view.waymarks));
  sink.Gauge("cairn_cluster_directory_waymarks", "Waymarks in this node's part of the directory.",
             {}, metrics::Number(view.directory_entries));
  sink.Gauge("cairn_cluster_directory_bytes", "Memory of this node's part of the directory.", {},
             metrics::Number(view.directory_bytes));
  sink.Counter("cairn_cluster_directory_forgotten_total",
               "Waymarks that were forgotten because the directory's memory was used up.", {},
               metrics::Number(view.directory_forgotten));
  sink.Gauge("cairn_cluster_announcing_members",
             "Members that were not yet told all that this node holds.", {},
             metrics::Number(view.announcing));
  sink.Counter("cairn_cluster_announcements_total", "Messages of announcements to owners.", {},
               metrics::Number(view.announcements));
  sink.Counter("cairn_cluster_failed_announcements_total",
               "Messages of announcements that were not taken.", {},
               metrics::Number(view.failed_announcements));
}

void ShowReads(const ClusterView& view, Sink& sink) {
  sink.Counter("cairn_cluster_found_blocks_total",
               "Blocks that were not here, and that other members said they have.", {},
               metrics::Number(view.found_blocks));
  sink.Counter("cairn_cluster_read_blocks_total", "Blocks read from other members.", {},
               metrics::Number(view.read_blocks));
  sink.Counter("cairn_cluster_failed_reads_total",
               "Blocks that no member could give, though one had said that it has them.", {},
               metrics::Number(view.failed_reads));
  sink.Counter("cairn_cluster_wrong_reads_total",
               "Reads in which a member sent bytes that are not those of the block.", {},
               metrics::Number(view.wrong_reads));
  const std::string name = "cairn_cluster_bytes_total";
  const std::string help =
      "Bytes of blocks that went from member to member. sent: over gRPC alone; what links move is "
      "in cairn_link_bytes_total.";
  sink.Counter(name, help, {{"direction", "read"}}, metrics::Number(view.read_bytes));
  sink.Counter(name, help, {{"direction", "sent"}}, metrics::Number(view.sent_bytes));
  const std::string busy = "cairn_cluster_busy_total";
  const std::string busy_help = "Reads of blocks that too many members took at the same time.";
  sink.Counter(busy, busy_help, {{"direction", "read"}}, metrics::Number(view.busy_reads));
  sink.Counter(busy, busy_help, {{"direction", "sent"}}, metrics::Number(view.busy_answers));
  sink.Counter("cairn_cluster_bump_exchanges_total",
               "Times that this node told another one its bumps.", {},
               metrics::Number(view.bump_exchanges));
}

}  // namespace

void ExportCluster(Cluster* cluster, membership::Discovery* discovery, MemoryAccount* account,
                   metrics::Registry* registry) {
  registry->AddCollector([cluster, discovery, account](Sink& sink) {
    account->Measure(MemoryItem::kCluster, cluster->bytes());
    const ClusterView view = cluster->view();
    ShowMembers(view, sink);
    ShowDirectory(view, sink);
    ShowReads(view, sink);
    sink.Gauge("cairn_cluster_discovery_up", "1: the last question to discovery was answered.", {},
               discovery->health().last.ok() ? 1 : 0);
  });
}

}  // namespace cairn::cache
