#pragma once
// Workers with a small random model (tests/data/gguf) that share one cache node in memory.

#include <memory>
#include <string>
#include <vector>

#include "cairn/client/testing/in_memory_cache_client.h"
#include "cairn/common/part.h"
#include "common/status/matchers.h"
#include "services/worker/engine/worker_engine.h"

namespace cairn::worker {

using client::testing::Faults;
using client::testing::InMemoryCacheClient;

// One fault: Fault(&Faults::hang, true).
template <typename Member, typename Value>
Faults Fault(Member Faults::*member, const Value& value) {
  Faults faults;
  faults.*member = value;
  return faults;
}

// A worker owns its client; the node outlives the workers.
class SharedClient : public client::CacheClient {
 public:
  explicit SharedClient(InMemoryCacheClient& node) : node_(node) {}
  Result<client::OpenedNamespace> OpenNamespace(const NamespaceSpec& spec,
                                                const client::CallOptions& options,
                                                const client::NamespaceOptions& how) override {
    return node_.OpenNamespace(spec, options, how);
  }
  Result<client::MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                                     const client::MatchOptions& options) override {
    return node_.Match(fingerprint, keys, options);
  }
  Status Fetch(const client::Lease& lease, const client::FetchRange& range, client::FetchSink& sink,
               const client::FetchOptions& options) override {
    return node_.Fetch(lease, range, sink, options);
  }
  Result<std::vector<Status>> Push(const Digest& fingerprint,
                                   std::span<const client::PartToPush> parts,
                                   const client::PushOptions& options) override {
    return node_.Push(fingerprint, parts, options);
  }
  Result<client::PrefetchOutcome> Prefetch(const Digest& fingerprint,
                                           std::span<const BlockKey> keys, Duration needed_in,
                                           const client::CallOptions& options) override {
    return node_.Prefetch(fingerprint, keys, needed_in, options);
  }
  Result<std::vector<std::optional<client::TierKind>>> Exists(
      const Digest& fingerprint, std::span<const BlockKey> keys,
      const client::CallOptions& options) override {
    return node_.Exists(fingerprint, keys, options);
  }
  Result<Duration> RenewLease(const client::Lease& lease, Duration ttl,
                              const client::CallOptions& options) override {
    return node_.RenewLease(lease, ttl, options);
  }
  Status Flush(const client::CallOptions& options) override { return node_.Flush(options); }
  Result<client::NodeStats> Stat(const client::CallOptions& options) override {
    return node_.Stat(options);
  }
  Result<std::unique_ptr<client::EventStream>> WatchEvents(
      const client::WatchOptions& options) override {
    return node_.WatchEvents(options);
  }
  client::ClientStats GetStats() const override { return node_.GetStats(); }

 private:
  InMemoryCacheClient& node_;
};

inline constexpr char kSmallModel[] = "tests/data/gguf/kquant.gguf";
inline constexpr uint32_t kBlockTokens = 64;
inline constexpr uint16_t kLayers = 2;
inline constexpr uint16_t kKvHeads = 2;
// K and V, binary16.
inline constexpr uint64_t kLayerBytes = 2ull * kKvHeads * kBlockTokens * 64 * 2;

class EngineFixture : public ::testing::Test {
 protected:
  static WorkerEngine::Options Options() {
    WorkerEngine::Options options;
    options.model_path = kSmallModel;
    options.threads = 1;
    // How much is fetched must not depend on how fast this machine computes, or how busy it is.
    options.prefix.connect_deadline = std::chrono::seconds(60);
    options.push.push_deadline = std::chrono::seconds(60);
    options.prefix.match_deadline = std::chrono::seconds(60);
    options.prefix.stall_deadline = std::chrono::seconds(60);
    options.prefix.max_stall = std::chrono::seconds(60);
    options.prefix.choose = false;
    return options;
  }
  // For a node that hangs: what is tested begins when a deadline has passed.
  static WorkerEngine::Options Impatient(WorkerEngine::Options options = Options()) {
    options.prefix.connect_deadline = std::chrono::seconds(1);
    options.push.push_deadline = std::chrono::seconds(5);
    options.prefix.match_deadline = std::chrono::milliseconds(50);
    options.prefix.stall_deadline = std::chrono::milliseconds(50);
    options.prefix.max_stall = std::chrono::milliseconds(50);
    return options;
  }

  std::unique_ptr<WorkerEngine> Worker(const WorkerEngine::Options& options = Options()) {
    auto engine = WorkerEngine::Create(options, std::make_unique<SharedClient>(node_));
    EXPECT_OK(engine);
    return *std::move(engine);
  }
  static std::unique_ptr<WorkerEngine> WorkerWithoutCache(
      const WorkerEngine::Options& options = Options()) {
    auto engine = WorkerEngine::Create(options, nullptr);
    EXPECT_OK(engine);
    return *std::move(engine);
  }

  // `count` tokens that depend on `seed`; prompts of one seed share their beginning.
  static GenerateRequest Request(size_t count, int32_t seed = 1, uint32_t max_tokens = 8) {
    TokenPrompt prompt;
    uint32_t state = static_cast<uint32_t>(seed) * 2654435761u;
    for (size_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      prompt.ids.push_back(static_cast<int32_t>(20 + (state >> 16) % 200));
    }
    GenerateRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.want_logits_digest = true;
    return request;
  }

  static GenerateSummary Run(WorkerEngine& worker, const GenerateRequest& request) {
    auto summary = worker.Generate(request, {});
    EXPECT_OK(summary);
    return summary.ok() ? *summary : GenerateSummary();
  }
  static void Idle(WorkerEngine& worker) { ASSERT_TRUE(worker.WaitIdle(std::chrono::seconds(60))); }

  // The part of an answer that must not depend on the cache.
  static void ExpectSameAnswer(const GenerateSummary& got, const GenerateSummary& want) {
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.text, want.text);
    EXPECT_EQ(got.finish_reason, want.finish_reason);
    EXPECT_EQ(got.prompt_logits_sha256, want.prompt_logits_sha256);
  }

  // Stores a block in which each number is 1.0, under a valid checksum.
  void PushOfOnes(const Digest& fingerprint, const BlockKey& key) {
    const std::vector<uint64_t> lengths(kLayers, kLayerBytes);
    std::vector<std::byte> part(format::PartBytes(lengths));
    for (size_t i = format::HeaderBytes(kLayers); i < part.size(); i += 2) {
      part[i] = std::byte{0x00};
      part[i + 1] = std::byte{0x3c};
    }
    const format::PartRect rect{0, kLayers, 0, kKvHeads};
    format::SealPart(part, format::Codec::kRaw, rect, kBlockTokens, lengths);
    client::PartToPush push;
    push.key = key;
    push.rect = rect;
    push.bytes = part;
    const auto result = node_.Push(fingerprint, {&push, 1}, {});
    ASSERT_OK(result);
    ASSERT_OK(result->front());
  }

  InMemoryCacheClient node_;
};

}  // namespace cairn::worker
