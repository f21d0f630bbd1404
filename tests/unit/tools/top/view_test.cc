#include "tools/cairn/top/view.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <vector>

namespace cairn::cli {
namespace {

constexpr uint64_t kMiB = 1 << 20;

SurveyedNode Node(uint64_t times) {
  SurveyedNode node{
      .address = "127.0.0.1:7400", .node_id = "node-1", .status = {}, .view = {}, .stats = {}};
  client::NodeStats stats;
  stats.node_epoch = 5;
  stats.uptime_seconds = 10.0 + static_cast<double>(times);
  stats.tiers = {
      {.tier = TierKind::kHost, .capacity_bytes = 512 * kMiB, .used_bytes = 128 * kMiB},
      {.tier = TierKind::kDisk, .capacity_bytes = 4096 * kMiB, .used_bytes = 1024 * kMiB}};
  stats.matched_tokens = 1000 + 300 * times;
  stats.missed_tokens = 1000 + 100 * times;
  stats.fetched_bytes = 6 * kMiB * times;
  stats.pushed_bytes = 2 * kMiB * times;
  stats.leases = 3;
  node.view.numbers.read_bytes = kMiB * times;
  node.stats = stats;
  return node;
}

Snapshot Look(uint64_t times) {
  Snapshot snapshot;
  snapshot.unix_seconds = 1764111600.0 + 2.0 * static_cast<double>(times);
  snapshot.at = TimePoint(std::chrono::seconds(100 + 2 * times));
  snapshot.nodes = {Node(times),
                    {.address = "127.0.0.1:7410",
                     .node_id = "node-2",
                     .status = Errorf(StatusCode::kUnavailable, "connection refused"),
                     .view = {},
                     .stats = {}}};
  SampledWorker busy{.name = "worker-1", .address = "127.0.0.1:7500", .status = {}, .load = {}};
  busy.load = {.model = "m",
               .cache_address = "127.0.0.1:7400",
               .cache_connected = true,
               .running_prompts = 1,
               .running_decodes = 4,
               .parked = 0,
               .queued_requests = 7,
               .prefill_seconds = 2.5,
               .kv_pages_free = 1200,
               .kv_pages_total = 4096,
               .prefill_tokens_per_second = 812.4,
               .step_seconds = 0.02,
               .draining = false};
  snapshot.workers = {busy,
                      {.name = "worker-2",
                       .address = "127.0.0.1:7501",
                       .status = Errorf(StatusCode::kUnavailable, "connection refused"),
                       .load = {}}};
  return snapshot;
}

const Terminal kPlain{.colors = false, .unicode = false, .tty = false, .columns = 200};

TEST(TopViewTest, Tables) {
  const Snapshot before = Look(0), now = Look(1);
  EXPECT_EQ(TopText(&before, now, kPlain), R"(2025-11-25T23:00:02Z
+--------+----------------+-----------------+------+------+------------+------------+------------+
| node   |            RAM |            disk | hits |  now |       sent |      taken | from peers |
+--------+----------------+-----------------+------+------+------------+------------+------------+
| node-1 | 128 MiB (25 %) | 1.00 GiB (25 %) | 54 % | 75 % | 3.00 MiB/s | 1.00 MiB/s |  512 KiB/s |
| node-2 |           away |                 |      |      |            |            |            |
+--------+----------------+-----------------+------+------+------------+------------+------------+
node-2 is away: connection refused
+----------+---------+-------+--------+--------------+---------+----------+----------------+
| worker   | waiting | batch | parked |   free pages | prefill | tokens/s | node           |
+----------+---------+-------+--------+--------------+---------+----------+----------------+
| worker-1 |       7 | 1 + 4 |      0 | 1,200 (29 %) |  2.50 s |      812 | 127.0.0.1:7400 |
| worker-2 |    away |       |        |              |         |          |                |
+----------+---------+-------+--------+--------------+---------+----------+----------------+
worker-2 is away: connection refused
)");
}

TEST(TopViewTest, OneRowForEachProcessUnderColumnsWithUnits) {
  const Snapshot before = Look(0);
  Snapshot now = Look(1);
  now.router = SampledRouter{.address = "127.0.0.1:7600",
                             .view = {.policy = "cost",
                                      .ready_workers = 1,
                                      .workers = 2,
                                      .arrivals_per_second = 1.5,
                                      .use = 0.4,
                                      .requests_active = 3,
                                      .requests_completed = 12345,
                                      .prompt_tokens = 400,
                                      .cached_tokens = 100,
                                      .index_bytes = 2 * kMiB}};
  EXPECT_EQ(TopHeader(now) + TopLines(&before, now),
            "# One row for each process and look. '-': not known.\n"
            "# Nodes: hits, of the tokens that workers asked for, since the node's start. now, sent"
            ", taken (to and from workers), from_peers: since the look before.\n"
            "# time                node    name                 RAM_used[B]      RAM_size[B]     di"
            "sk_used[B]     disk_size[B]  hits[%]  now[%]     sent[B/s]    taken[B/s]  from_peers[B"
            "/s]  leases\n"
            "# Workers: requests by what they do. prefill: until all prompts are computed. cache: w"
            "hether it has a session with its node.\n"
            "# time                worker  name             waiting  prompts  decodes  parked  free"
            "[pages]  all[pages]  prefill[s]  prompt[tokens/s]  draining  cache\n"
            "# Router: use, of the last minute in which workers had prompts to compute. cached, of "
            "the prompt tokens.\n"
            "# time                router  name             workers  ready  arrivals[1/s]  use[%]  "
            "active      done    shed  cached[%]      index[B]\n"
            "2025-11-25T23:00:02Z  node    node-1                 134217728        536870912       "
            "1073741824       4294967296     54.2    75.0       3145728       1048576           524"
            "288       3\n"
            "2025-11-25T23:00:02Z  node    node-2           away: connection refused\n"
            "2025-11-25T23:00:02Z  worker  worker-1               7        1        4       0      "
            "   1200        4096       2.500               812        no    yes\n"
            "2025-11-25T23:00:02Z  worker  worker-2         away: connection refused\n"
            "2025-11-25T23:00:02Z  router  router                 2      1           1.50    40.0  "
            "     3     12345       0       25.0       2097152\n");
}

// Scripts take the words of a row by their number.
TEST(TopViewTest, RowsHaveAsManyWordsAsTheirTitles) {
  Snapshot now = Look(1);
  now.router = SampledRouter{.address = "127.0.0.1:7600", .view = {.policy = "cost"}};
  std::map<std::string, size_t> titles;  // Words, by kind.
  std::istringstream text(TopHeader(now) + TopLines(nullptr, now));
  std::set<std::string> rows;
  for (std::string line; std::getline(text, line);) {
    std::istringstream in(line);
    const std::vector<std::string> words(std::istream_iterator<std::string>(in), {});
    if (line.starts_with("# time")) {
      titles[words[2]] = words.size() - 1;  // '#' is a word of its own.
    } else if (!line.starts_with("#") && line.find(" away: ") == line.npos) {
      EXPECT_EQ(words.size(), titles[words[1]]) << line;
      rows.insert(words[1]);
    }
  }
  EXPECT_EQ(rows, (std::set<std::string>{"node", "worker", "router"}));
}

TEST(TopViewTest, ARouterHasARow) {
  Snapshot now;
  now.router = SampledRouter{.address = "127.0.0.1:7600",
                             .view = {.policy = "cost",
                                      .ready_workers = 1,
                                      .workers = 2,
                                      .arrivals_per_second = 1.5,
                                      .use = 0.4,
                                      .requests_active = 3,
                                      .requests_completed = 12345,
                                      .prompt_tokens = 400,
                                      .cached_tokens = 100,
                                      .index_bytes = 2 * kMiB}};
  EXPECT_EQ(TopText(nullptr, now, kPlain), R"(1970-01-01T00:00:00Z
+--------+---------+------------+------+--------+--------+------+--------+----------+
| router | workers | requests/s |  use | active |   done | shed | cached |    index |
+--------+---------+------------+------+--------+--------+------+--------+----------+
| cost   |  1 of 2 |       1.50 | 40 % |      3 | 12,345 |    0 |   25 % | 2.00 MiB |
+--------+---------+------------+------+--------+--------+------+--------+----------+
)");
  EXPECT_EQ(TopJson(nullptr, now)["router"]["ready_workers"], 1);
  now.router->view.waiting = "workers";
  EXPECT_EQ(TopText(nullptr, now, kPlain), "1970-01-01T00:00:00Z\nrouter waits: workers\n");
  now.router->status = Errorf(StatusCode::kUnavailable, "connection refused");
  EXPECT_EQ(TopText(nullptr, now, kPlain),
            "1970-01-01T00:00:00Z\nrouter is away: connection refused\n");
  EXPECT_EQ(TopJson(nullptr, now)["router"]["away"], true);
}

TEST(TopViewTest, TheFirstLookKnowsNoRates) {
  const Snapshot now = Look(1);
  const Json json = TopJson(nullptr, now);
  EXPECT_TRUE(json["interval_s"].is_null());
  EXPECT_TRUE(json["nodes"][0]["hit_share_now"].is_null());
  EXPECT_TRUE(json["nodes"][0]["to_workers_bytes_per_s"].is_null());
  EXPECT_NE(TopLines(nullptr, now).find(" 54.2       -             -  "), std::string::npos)
      << TopLines(nullptr, now);
}

TEST(TopViewTest, JsonHasRatesAndWhoIsAway) {
  const Snapshot before = Look(0), now = Look(1);
  const Json json = TopJson(&before, now);
  EXPECT_EQ(json["interval_s"], 2.0);
  EXPECT_EQ(json["nodes"][0]["away"], false);
  EXPECT_EQ(json["nodes"][0]["tiers"]["disk"]["used_bytes"], 1024 * kMiB);
  EXPECT_EQ(json["nodes"][0]["hit_share_now"], 0.75);
  EXPECT_EQ(json["nodes"][0]["to_workers_bytes_per_s"], 3.0 * kMiB);
  EXPECT_EQ(json["nodes"][1]["away"], true);
  EXPECT_EQ(json["nodes"][1]["error"], "connection refused");
  EXPECT_EQ(json["workers"][0]["waiting"], 7);
  EXPECT_EQ(json["workers"][0]["kv_pages_free"], 1200);
  EXPECT_EQ(json["workers"][1]["away"], true);
  EXPECT_FALSE(json["workers"][1].contains("waiting"));
}

TEST(TopViewTest, ANodeThatStartedAnewHasNoRatesUntilTheNextLook) {
  const Snapshot before = Look(3);
  Snapshot now = Look(4);
  now.nodes[0].stats->fetched_bytes = 0;
  now.nodes[0].stats->uptime_seconds = 0.5;
  EXPECT_FALSE(RatesOf(&before, now, now.nodes[0]).has_value());
  EXPECT_TRUE(TopJson(&before, now)["nodes"][0]["to_workers_bytes_per_s"].is_null());
}

TEST(TopViewTest, WhatNobodyAskedForHasNoShare) {
  EXPECT_FALSE(HitShare(0, 0).has_value());
  EXPECT_EQ(HitShare(1, 3), 0.25);
}

}  // namespace
}  // namespace cairn::cli
