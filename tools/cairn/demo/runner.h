#pragma once
// The demo's workload: the same questions cold, from RAM, on another worker, stored by lossy
// recipes, from other nodes of a cluster that dies node by node, from disk and with too little RAM,
// and one chat. Every answer is compared with that of a process that never saw a cache.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tools/cairn/demo/cluster.h"
#include "tools/cairn/demo/estimate.h"
#include "tools/cairn/demo/members.h"
#include "tools/cairn/demo/report.h"
#include "tools/cairn/demo/texts.h"
#include "tools/cairn/demo/timeline.h"
#include "tools/cairn/output/progress.h"

namespace cairn::cli {

// Not thread-safe.
class DemoRunner {
 public:
  struct Options {
    std::string model_path;
    std::string out_directory;  // Exists. Logs and the node's disk/ go there.
    // Address of a running node; empty: start one. With one, nothing is killed, so there are no
    // phases with a cluster, disk and small arena.
    std::string cache;
    int threads = 0;
    bool as_time_allows = false;  // Asks fewer questions on a slow machine.
  };
  // `progress` must outlive the runner.
  DemoRunner(Options options, DemoTexts texts, Progress& progress);

  // All phases. Rows that were measured before an error stay in rows(). CANCELLED after Ctrl-C.
  Status Run();

  const std::vector<DemoRow>& rows() const { return rows_; }
  // The timelines of the requests with a long question: when its layers were fetched and computed.
  const std::vector<TimelinePicture>& timelines() const { return timelines_; }
  // As the worker names it; empty before the first phase.
  const std::string& model() const { return model_; }
  // The estimate that was shown before the first phase; 0 if there was none.
  double estimated_s() const { return estimate_.total_s(); }

 private:
  // Tokens of the phase `beyond`, if the model's context has room for them. More would take
  // machines without matrix units longer than a minute.
  static constexpr uint32_t kBeyondTokens = 6000;
  struct Reference {
    Answer answer;
    double ttft_s = 0;
  };

  using HeldOfSummary = std::function<HeldKv(const worker::GenerateSummary&)>;

  // A prompt of which node 1 alone has some KV.
  struct HolderPrompt {
    std::string item;
    std::vector<model::ChatMessage> messages;
    Reference reference;
    uint32_t tokens = 0;  // Tokens that node 1 alone has.
  };

  // A short prompt on a worker of its own: how long the demo will take is said before it begins.
  Status Measure();
  DemoSize SizeFor(double tokens_per_byte, uint32_t context_tokens) const;
  // Says what is left when a phase begins.
  void Begin(const std::string& phase);
  Status RunCold();
  Status RunColdChat();
  Status StartWarm();
  Status RunWarmPhase(const std::string& phase, WorkerProcess& worker);
  Status RunWarmChat();
  // 16 chats at once, on a worker of their own: two users for each question. One row for all.
  Status RunTogether();
  // Their row, without what the node counted: sums of tokens and bytes, medians of times.
  Status AddTogether(std::span<const std::optional<Result<worker::GenerateSummary>>> answers);
  // A long question on the shared prefix, over gRPC and through shared memory: the prefix's layers
  // arrive while the question is computed on them.
  Status RunLong();
  // A prompt as long as the model's context, in a worker with room for a fifth of its KV, and in
  // one with room for all. On a node of its own.
  Status RunBeyond();
  // Each lossy recipe in a namespace of its own: one worker computes the shared prefix and pushes
  // it in all of them, another one for each fetches it.
  Status RunRecipes();
  // Three nodes: what the first one holds is read through the second and the third, then the first
  // one is killed while it sends, then the second one.
  Status RunCluster();
  // Other members find a prompt only if it has a waymark: asks one prompt after the other until the
  // holder dies.
  Status KillTheHolder(WorkerProcess& worker, DemoNode& home);
  Status RunDisk();
  Status RunSmallArena(uint64_t working_set);

  Result<std::unique_ptr<WorkerProcess>> StartWorker(const std::string& name,
                                                     const std::string& cache,
                                                     std::vector<std::string> settings = {});
  // A short prompt of its own, so that no row pays for first touches of weights and code.
  Status WarmUp(Generator& worker);
  // Connected to the node, or to one of those at `cache`, and warm.
  Result<std::unique_ptr<WorkerProcess>> StartWarmWorker(const std::string& name,
                                                         std::vector<std::string> settings = {},
                                                         const std::string& cache = {});
  // Bytes of blocks in the node's RAM.
  Result<uint64_t> WorkingSet();
  // The shared prefix, once, with a question that no row asks.
  Status PushPrefix(Generator& worker);
  // A request that is no row, and the pushes that follow.
  Status AskOnce(Generator& worker, std::vector<model::ChatMessage> messages);
  Result<worker::GenerateSummary> Ask(Generator& worker, std::vector<model::ChatMessage> messages,
                                      bool keep_turn, bool no_cache = false,
                                      const std::function<void()>& at_first_token = nullptr);
  // Asks, waits for background work, adds a row that is compared with `reference`. `node`: that the
  // worker uses; nullptr: the one of most phases. `at_first_token` is called once. `held`: what the
  // worker held of the prompt's KV, in rows that compare that.
  Result<worker::GenerateSummary> AskRow(const std::string& name, Generator& worker,
                                         std::vector<model::ChatMessage> messages, bool keep_turn,
                                         const Reference& reference, DemoNode* node = nullptr,
                                         const std::function<void()>& at_first_token = nullptr,
                                         const HeldOfSummary& held = nullptr);
  // Kills the node and starts it on the same directory; the workers are connected again.
  Status RestartNode(uint64_t host_bytes);
  std::vector<model::ChatMessage> Question(size_t i) const;
  // A system message of about `tokens` tokens: the shared one, as often as it takes.
  std::string SharedText(uint32_t tokens) const;
  void Show(const DemoRow& row, const NodeTraffic& traffic);

  const Options options_;
  DemoTexts texts_;
  Progress& progress_;
  std::string model_;
  std::vector<DemoRow> rows_;
  std::vector<TimelinePicture> timelines_;
  DemoEstimate estimate_;
  std::chrono::steady_clock::time_point began_ = {};  // The first phase.
  // The end of the prefix of requests, in tokens; 0: they name none.
  uint32_t prefix_end_ = 0;
  std::map<std::string, Reference> references_;  // By item: "q1", "turn2".
  std::vector<HolderPrompt> holder_prompts_;     // Those of the cluster phase.
  std::unique_ptr<DemoMembers> members_;         // nullptr: the node is external.
  std::unique_ptr<DemoNode> node_;
  std::unique_ptr<WorkerProcess> first_;
  std::unique_ptr<WorkerProcess> second_;
};

}  // namespace cairn::cli
