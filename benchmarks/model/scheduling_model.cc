// scheduling_model [--trace FILE] [--requests N] [--only SCENARIO,...] [--json]
//
// Compares policies of workers on a trace of requests, in simulated time (README.md).

#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/model/cluster_model.h"
#include "benchmarks/model/requests.h"
#include "benchmarks/model/scenarios.h"

namespace cairn::simulated {

std::vector<Request> AtLoad(const std::vector<Request>& requests, double load, size_t workers) {
  return SpedUp(requests, load / LoadOf(requests, WorkerSpeeds(), workers));
}

std::string Line(const Outcome& outcome) {
  return fmt::format(
      "p50 {:.2f} p99 {:.1f} mean {:.2f} s, {:.0f} tokens/s, {} refused, {:.2f} of tokens hit",
      outcome.percentile(0.5), outcome.percentile(0.99), outcome.mean(), outcome.tokens_per_second,
      outcome.refused, outcome.hit_share);
}

namespace {

struct Options {
  std::string trace = "tests/data/traces/conversation_trace.jsonl";
  size_t requests = 0;
  std::string only = "order,overload,flood";
  bool json = false;
};

// First in first out is the yardstick of the order.
void CompareOrder(const std::vector<Request>& requests, Report* report) {
  for (const double load : {0.50, 0.67, 0.84, 1.00, 1.17, 1.34}) {
    const std::vector<Request> sped = AtLoad(requests, load, ClusterOptions().workers);
    ClusterOptions options;
    const Outcome ordered = Play(sped, options);
    options.worker.first_in_first_out = true;
    const Outcome fifo = Play(sped, options);
    std::fprintf(stderr, "load %.2f first in first out: %s\n", load, Line(fifo).c_str());
    std::fprintf(stderr, "load %.2f order:              %s\n", load, Line(ordered).c_str());
    const auto row = [&](const char* what, double value, double yardstick) {
      report->rows.push_back({fmt::format("order_{}_load_{:.2f}", what, load), value, "s",
                              yardstick, yardstick / value});
    };
    row("p50_ttft", ordered.percentile(0.5), fifo.percentile(0.5));
    row("mean_ttft", ordered.mean(), fifo.mean());
    row("p99_ttft", ordered.percentile(0.99), fifo.percentile(0.99));
  }
}

// The throughput of workers at saturation is the yardstick of twice as much.
void CompareOverload(const std::vector<Request>& requests, Report* report) {
  constexpr double kSaturating = 1.34;
  ClusterOptions options;
  options.worker.queue.max_wait_seconds = 2;
  const Outcome once = Play(AtLoad(requests, kSaturating, options.workers), options);
  const Outcome twice = Play(AtLoad(requests, 2 * kSaturating, options.workers), options);
  std::fprintf(stderr, "saturation: %s\ntwice:      %s\n", Line(once).c_str(), Line(twice).c_str());
  report->rows.push_back({"overload_p99_ttft", twice.percentile(0.99), "s", once.percentile(0.99),
                          once.percentile(0.99) / twice.percentile(0.99)});
  report->rows.push_back({"overload_tokens_per_second", twice.tokens_per_second, "tokens/s",
                          once.tokens_per_second,
                          twice.tokens_per_second / once.tokens_per_second});
}

// One worker. Every fourth request is the tenant's, at a load that half of a worker bears well. The
// others flood. Its yardstick is to be alone on a worker of half the speed.
void CompareFlood(const std::vector<Request>& requests, Report* report) {
  std::vector<Request> both = AtLoad(requests, 1.6, 1);
  std::vector<Request> alone;
  for (size_t i = 0; i < both.size(); ++i) {
    both[i].tenant = i % 4 == 0 ? "small" : "flood";
    if (i % 4 == 0) alone.push_back(both[i]);
  }
  ClusterOptions options;
  options.workers = 1;
  options.worker.queue.capacity = 64;
  const Outcome flooded = Play(both, options, "small");
  ClusterOptions half = options;
  half.worker.speeds = half.worker.speeds.Slower(2);
  const Outcome own = Play(alone, half, "small");
  std::fprintf(stderr, "alone, half speed: %s\nbeside a flood:    %s\n", Line(own).c_str(),
               Line(flooded).c_str());
  report->rows.push_back({"flood_p99_ttft", flooded.percentile(0.99), "s", own.percentile(0.99),
                          own.percentile(0.99) / flooded.percentile(0.99)});
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0) {
      options->json = true;
    } else if (std::strcmp(argv[i], "--trace") == 0 && more) {
      options->trace = argv[++i];
    } else if (std::strcmp(argv[i], "--requests") == 0 && more) {
      options->requests = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--only") == 0 && more) {
      options->only = argv[++i];
    } else {
      return false;
    }
  }
  return true;
}

void Print(const Report& report, bool json) {
  const std::vector<Row>& rows = report.rows;
  if (!json) {
    for (const Row& row : rows) {
      std::printf("%-28s %10.3f %-9s yardstick %10.3f  ratio %.2f\n", row.name.c_str(), row.value,
                  row.unit.c_str(), row.yardstick, row.ratio);
    }
    return;
  }
  std::printf("{\"rows\": [");
  for (size_t i = 0; i < rows.size(); ++i) {
    std::printf(
        "%s\n {\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"yardstick\": %.6g, "
        "\"ratio\": %.6g}",
        i == 0 ? "" : ",", rows[i].name.c_str(), rows[i].value, rows[i].unit.c_str(),
        rows[i].yardstick, rows[i].ratio);
  }
  std::printf("\n], \"runs\": [");
  for (size_t i = 0; i < report.runs.size(); ++i) {
    const PolicyRun& run = report.runs[i];
    std::printf(
        "%s\n {\"scenario\": \"%s\", \"policy\": \"%s\", \"load\": %.2f, \"p50\": %.4g, "
        "\"p90\": %.4g, \"p99\": %.4g, \"mean\": %.4g, \"hit_share\": %.3f, "
        "\"tokens_per_second\": %.5g, \"refused\": %zu}",
        i == 0 ? "" : ",", run.scenario.c_str(), run.policy.c_str(), run.load, run.p50, run.p90,
        run.p99, run.mean, run.hit_share, run.tokens_per_second, run.refused);
  }
  std::printf("\n]}\n");
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: scheduling_model [--trace FILE] [--requests N] "
                 "[--only order,overload,flood,routing,replicas,shedding,unequal,generated,"
                 "fifo,engines] "
                 "[--json]\n");
    return 2;
  }
  const auto requests = ReadRequests(options.trace, options.requests);
  if (!requests.ok() || requests->empty()) {
    std::fprintf(stderr, "scheduling_model: %s\n",
                 requests.ok() ? "the trace has no requests" : ToString(requests.status()).c_str());
    return 1;
  }
  const std::map<std::string, std::function<void(const std::vector<Request>&, Report*)>> scenarios =
      {{"order", CompareOrder},          {"overload", CompareOverload},
       {"flood", CompareFlood},          {"routing", CompareRouting},
       {"replicas", CompareReplicas},    {"shedding", CompareShedding},
       {"unequal", CompareUnequal},      {"generated", CompareGenerated},
       {"fifo", CompareFirstInFirstOut}, {"engines", CompareEngines}};
  Report report;
  for (const auto& [name, run] : scenarios) {
    if (fmt::format(",{},", options.only).find(fmt::format(",{},", name)) != std::string::npos) {
      run(*requests, &report);
    }
  }
  Print(report, options.json);
  return 0;
}

}  // namespace
}  // namespace cairn::simulated

int main(int argc, char** argv) { return cairn::simulated::Main(argc, argv); }
