#pragma once
// The set-up of the cluster's measurements: nodes in a network of their own, whose links are slow
// enough that this machine's cores are not the limit.

#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::bench {

struct Options {
  std::string trace = "tests/data/traces/conversation_trace.jsonl";
  size_t requests = 300;  // Requests of the trace.
  double pause_ms = 30;   // Between two requests.
  size_t rounds = 5;      // Samples of a row, but of those that take long.
};

// A figure with its yardstick from the same run. `ratio`: more is better, but for times, where the
// name says so.
struct Row {
  std::string name;
  std::vector<double> samples;
  std::string unit;
  std::string yardstick;
};

using Rows = std::vector<Row>;

// Eight nodes as one: blocks hit, as a share of those that one node with all the memory hits; and
// what the directory takes.
Result<Rows> MeasureTrace(const Options& options);
// A prompt that another node holds, through the home node, against a fetch from the holder over the
// same link.
Result<Rows> MeasureRemoteHit(const Options& options);
// Match of 2,048 keys.
Result<Rows> MeasureMatch(const Options& options);
// Clients of one node, and of eight.
Result<Rows> MeasureBandwidth(const Options& options);
// Seven nodes want one prefix at once.
Result<Rows> MeasureHerd(const Options& options);

// The process that the herd starts in each machine: brings a prompt from the node at `address`, and
// prints how long it took, in seconds.
Status GetPrompt(const std::string& address, const std::string& model, uint64_t prompt,
                 size_t blocks);

}  // namespace cairn::bench
