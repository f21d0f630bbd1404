// cairn_fault_load: reads and writes blocks of a fault model until it is told to end, and checks
// every byte that it is given.
//
//   cairn_fault_load --address 127.0.0.1:7400 --seed 7 --mode both
//
// On stdout: "ready" after the first contact; "flushed PROMPT BLOCKS" for what the node has
// promised to keep; at the end (SIGTERM, or after --ops) one line of JSON with counters. Exit code
// 3: something was served that is wrong.

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include "cairn/client/connect.h"
#include "common/concurrency/mutex.h"
#include "common/config/config.h"
#include "common/log/log.h"
#include "tests/fault/load/actions.h"

namespace cairn::fault {
namespace {

std::atomic<bool> g_stop{false};

// The node dies and hangs here, and what fails is counted, not wrong.
ReadOptions ShortRead() {
  return {.match_deadline = std::chrono::seconds(1),
          .fetch_deadline = std::chrono::seconds(5),
          .progress = std::chrono::seconds(1)};
}

struct Options {
  std::string address;
  std::string mode = "both";
  uint64_t seed = 1;
  uint64_t ops = 0;
  uint32_t threads = 1;
  uint64_t prompts = 150;
  uint32_t flush_every = 25;
  uint32_t layer_begin = 0, layer_end = 0, head_begin = 0, head_end = 0;
  Duration slice_pause{0};
  FaultModelOptions model;
};

// Totals of all threads. Thread-safe.
class Report {
 public:
  void Add(const ReadOutcome& read) {
    MutexLock lock(mu_);
    ++reads_;
    served_bytes_ += read.verified_bytes;
    matched_blocks_ += read.matched_blocks;
    complete_blocks_ += read.complete_blocks;
    for (size_t i = 0; i < misses_.size(); ++i) misses_[i] += read.misses[i];
    if (!read.status.ok()) ++errors_[static_cast<int>(read.status.code())];
    for (const std::string& text : read.wrong) {
      ++mismatches_;
      std::cerr << "mismatch: " << text << "\n";
    }
  }
  void Add(const WriteOutcome& write) {
    MutexLock lock(mu_);
    ++writes_;
    stored_blocks_ += write.stored_blocks;
    stored_bytes_ += write.stored_bytes;
    if (!write.status.ok()) ++errors_[static_cast<int>(write.status.code())];
    if (write.refused_parts > 0)
      errors_[static_cast<int>(write.refused.code())] += write.refused_parts;
  }
  // Blocks that are stored, read and right, and not yet flushed, prompt -> blocks, in one period:
  // from a moment when the node had `epoch`. A restart between the store and the flush would make
  // the flush say nothing about it.
  struct Period {
    uint64_t number = 0;
    uint64_t epoch = 0;  // 0: unknown.
    std::map<uint64_t, uint64_t> prompts = {};
  };
  uint64_t PeriodNumber() const {
    MutexLock lock(mu_);
    return period_.number;
  }
  // Dropped when another period has begun since `period`.
  void Stored(uint64_t period, uint64_t prompt, uint64_t blocks) {
    MutexLock lock(mu_);
    if (period == period_.number)
      period_.prompts[prompt] = std::max(period_.prompts[prompt], blocks);
  }
  Period NextPeriod(uint64_t epoch) {
    MutexLock lock(mu_);
    return std::exchange(period_, {.number = period_.number + 1, .epoch = epoch});
  }
  void Flushed(const std::map<uint64_t, uint64_t>& prompts) {
    std::string text;
    for (const auto& [prompt, blocks] : prompts)
      text += fmt::format("flushed {} {}\n", prompt, blocks);
    MutexLock lock(mu_);
    ++flushes_;
    std::cout << text << std::flush;
  }
  uint64_t mismatches() const {
    MutexLock lock(mu_);
    return mismatches_;
  }
  std::string Json() const {
    MutexLock lock(mu_);
    std::string misses, errors;
    for (size_t i = 1; i < misses_.size(); ++i) {
      misses += fmt::format("{}\"{}\":{}", misses.empty() ? "" : ",",
                            Name(static_cast<client::MissReason>(i)), misses_[i]);
    }
    for (const auto& [code, count] : errors_) {
      errors += fmt::format("{}\"{}\":{}", errors.empty() ? "" : ",",
                            absl::StatusCodeToString(static_cast<StatusCode>(code)), count);
    }
    return fmt::format(
        "{{\"reads\":{},\"writes\":{},\"flushes\":{},\"served_bytes\":{},\"matched_blocks\":{},"
        "\"complete_blocks\":{},"
        "\"stored_blocks\":{},\"stored_bytes\":{},\"mismatches\":{},\"misses\":{{{}}},\"errors\":{{"
        "{}}}}}",
        reads_, writes_, flushes_, served_bytes_, matched_blocks_, complete_blocks_, stored_blocks_,
        stored_bytes_, mismatches_, misses, errors);
  }

 private:
  mutable Mutex mu_;
  uint64_t reads_ = 0, writes_ = 0, flushes_ = 0, served_bytes_ = 0, matched_blocks_ = 0,
           complete_blocks_ = 0, stored_blocks_ = 0, stored_bytes_ = 0, mismatches_ = 0;
  std::array<uint64_t, client::kMissReasonCount> misses_{};
  std::map<int, uint64_t> errors_;
  Period period_;
};

// The epoch of the node as it runs now; 0 when it does not answer.
uint64_t NodeEpoch(client::CacheClient& client) {
  const Result<client::NodeStats> stats = client.Stat({.deadline = std::chrono::seconds(1)});
  return stats.ok() ? stats->node_epoch : 0;
}

void Flush(client::CacheClient& client, Report& report) {
  const Report::Period period = report.NextPeriod(NodeEpoch(client));
  if (period.epoch == 0 || !client.Flush({.deadline = std::chrono::seconds(5)}).ok()) return;
  if (NodeEpoch(client) == period.epoch) report.Flushed(period.prompts);
}

void RunThread(client::CacheClient& client, const FaultModel& model, const Options& options,
               uint64_t seed, std::atomic<uint64_t>& ops, Report& report) {
  std::mt19937_64 random(seed);
  const bool reads = options.mode != "writer";
  const bool writes = options.mode != "reader";
  format::PartRect rect = model.whole();
  if (options.layer_end != 0) {
    rect = {static_cast<uint16_t>(options.layer_begin), static_cast<uint16_t>(options.layer_end),
            static_cast<uint16_t>(options.head_begin), static_cast<uint16_t>(options.head_end)};
  }
  const bool whole = rect == model.whole();
  while (!g_stop.load(std::memory_order_relaxed)) {
    const uint64_t op = ops.fetch_add(1);
    if (options.ops != 0 && op >= options.ops) return;
    // Small numbers more often than large ones: prefixes become hot.
    const uint64_t prompt = random() % (1 + random() % options.prompts);
    const std::vector<BlockKey> keys = model.MakePrompt(prompt);
    const uint64_t period = report.PeriodNumber();
    size_t have = 0;
    uint64_t known = 0;  // Blocks that are there and right, from the first.
    bool away = false;
    if (reads) {
      ReadOptions read = ShortRead();
      read.want = rect;
      read.slice_pause = options.slice_pause;
      std::stop_source cancel;
      if (random() % 32 == 0) cancel.request_stop();  // A reader that changes its mind.
      read.cancel = cancel.get_token();
      const ReadOutcome outcome = Read(client, model, keys, read);
      report.Add(outcome);
      have = outcome.matched_blocks;
      known = outcome.complete_prefix;
      // Blocks whose bytes are lost have left the node now. They are written again.
      if (outcome.failed_blocks > 0) have = known;
      away = !outcome.status.ok() && outcome.status.code() != StatusCode::kCancelled;
    }
    if (writes && have < keys.size()) {
      const WriteOutcome outcome = Write(client, model, keys, have, rect);
      report.Add(outcome);
      away = !outcome.status.ok();
      // After a power loss the index may name blocks whose bytes are lost. A match finds them, and
      // so does a write (ALREADY_EXISTS), until somebody reads them. A flush promises nothing about
      // them, so only what is read here counts.
      if (whole && outcome.status.ok()) {
        const ReadOutcome written = Read(client, model, keys, ShortRead());
        report.Add(written);
        known = written.complete_prefix;
      }
    }
    if (writes && whole && known > 0) report.Stored(period, prompt, known);
    if (writes && random() % options.flush_every == 0) Flush(client, report);
    // A node that is away is asked again at a moderate rate.
    if (away) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

int Run(const Options& options) {
  log::Configure({.level = log::Level::kError});  // That nodes go away is what happens here.
  const FaultModel model(options.model);
  client::ConnectOptions connect{.address = options.address,
                                 .client_name = fmt::format("fault-load-{}", options.seed)};
  connect.breaker = {.failures = 3,
                     .first_backoff = std::chrono::milliseconds(20),
                     .max_backoff = std::chrono::milliseconds(100),
                     .seed = options.seed};
  connect.max_reconnect_backoff = std::chrono::milliseconds(100);
  auto client = client::Connect(connect);
  if (!client.ok()) {
    std::cerr << ToString(client.status()) << "\n";
    return 2;
  }
  while (!g_stop.load() && !(*client)->OpenNamespace(model.spec()).ok()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::cout << "ready" << std::endl;
  Report report;
  std::atomic<uint64_t> ops{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < options.threads; ++i) {
    threads.emplace_back(
        [&, i] { RunThread(**client, model, options, options.seed * 1000 + i, ops, report); });
  }
  for (std::thread& thread : threads) thread.join();
  client->reset();
  std::cout << report.Json() << std::endl;
  return report.mismatches() == 0 ? 0 : 3;
}

}  // namespace
}  // namespace cairn::fault

int main(int argc, char** argv) {
  using namespace cairn;
  fault::Options o;
  config::Schema schema("cairn_fault_load", "Load with checked bytes, for fault tests.");
  schema.Text("address", &o.address, "Cache node, host:port.");
  schema.Text("mode", &o.mode, "What it does.", {.choices = {"reader", "writer", "both"}});
  schema.Integer("seed", &o.seed, "Of the order of prompts.");
  schema.Integer("ops", &o.ops, "Ends after so many; 0: at SIGTERM.");
  schema.Integer("threads", &o.threads, "Of one client.", {.min = 1, .max = 64});
  schema.Integer("prompts", &o.prompts, "Different prompts.", {.min = 1});
  schema.Integer("flush_every", &o.flush_every, "Operations, on average.", {.min = 1});
  schema.Integer("layer_begin", &o.layer_begin,
                 "Rectangle of a writer's parts, and of what a reader puts together.");
  schema.Integer("layer_end", &o.layer_end, "0: the whole rectangle.");
  schema.Integer("head_begin", &o.head_begin, "Rectangle, first head.");
  schema.Integer("head_end", &o.head_end, "Rectangle, end of the heads.");
  schema.Time("slice_pause", &o.slice_pause, "A reader spends this on each slice.");
  schema.Text("model", &o.model.model, "Name of the namespace's model.");
  schema.Text("tenant", &o.model.tenant, "Of the namespace.");
  schema.Integer("layers", &o.model.layers, "Of the layout.", {.min = 1, .max = 64});
  schema.Integer("kv_heads", &o.model.kv_heads, "Of the layout.", {.min = 1, .max = 64});
  schema.Integer("dim", &o.model.dim, "Of a head.", {.min = 8, .max = 1024});
  schema.Integer("depth", &o.model.depth, "Blocks of the longest prompt.", {.min = 1, .max = 1024});
  const auto line = config::Load(schema, {argv + 1, argv + argc});
  if (!line.ok()) {
    std::cerr << ToString(line.status()) << "\n";
    return 2;
  }
  if (line->exit) {
    std::cout << line->output;
    return 0;
  }
  std::signal(SIGTERM, [](int) { fault::g_stop.store(true); });
  return fault::Run(o);
}
