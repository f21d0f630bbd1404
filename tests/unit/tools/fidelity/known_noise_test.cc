// Whether the measure of fidelity sees what was done to KV: noise of known size, numbers at the
// wrong place, and recipes of fewer and fewer bits. The real model, and the worker's own push and
// fetch.

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/support/half.h"
#include "tests/unit/worker/compute/smollm2.h"
#include "tests/unit/worker/engine/engine_fixture.h"
#include "tools/cairn/fidelity/metrics.h"

namespace cairn::cli {
namespace {

using cairn::testing::Half;

using client::testing::InMemoryCacheClient;
using worker::WorkerEngine;

constexpr size_t kBlockTokens = 64;
constexpr size_t kHeads = 3;
constexpr size_t kDim = 64;
constexpr size_t kHead = kBlockTokens * kDim;  // Numbers of a head of a slice.
constexpr size_t kPlane = kHeads * kHead;

// Done to the keys and values of each slice that is fetched; `block` counts from the prompt's
// first.
using Change = std::function<void(std::span<Half> k, std::span<Half> v, uint32_t block)>;

class ChangingSink final : public client::FetchSink {
 public:
  ChangingSink(client::FetchSink& sink, const Change& change) : sink_(sink), change_(change) {}
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    std::vector<Half> numbers(2 * kPlane);
    CAIRN_CHECK(data.size() == sizeof(Half) * numbers.size());
    std::memcpy(numbers.data(), data.data(), data.size());
    const std::span<Half> all(numbers);
    change_(all.first(kPlane), all.subspan(kPlane), slice.block);
    return sink_.OnSlice(slice, std::as_bytes(all));
  }
  void OnBlockFailed(uint32_t block, client::MissReason reason) override {
    sink_.OnBlockFailed(block, reason);
  }

 private:
  client::FetchSink& sink_;
  const Change& change_;
};

// Stands for a codec with a known error: what is fetched is what was pushed, changed, under
// checksums that are right.
class ChangingClient final : public worker::SharedClient {
 public:
  ChangingClient(InMemoryCacheClient& node, const Change& change)
      : SharedClient(node), change_(change) {}
  Status Fetch(const client::Lease& lease, const client::FetchRange& range, client::FetchSink& sink,
               const client::FetchOptions& options) override {
    if (!change_) return SharedClient::Fetch(lease, range, sink, options);
    ChangingSink changing(sink, change_);
    return SharedClient::Fetch(lease, range, changing, options);
  }

 private:
  const Change& change_;
};

// Normal noise of `size` times the root mean square of each plane.
Change Noise(double size) {
  return [size, random = std::mt19937(7)](std::span<Half> k, std::span<Half> v, uint32_t) mutable {
    for (const std::span<Half> plane : {k, v}) {
      double squares = 0;
      for (const Half x : plane) squares += static_cast<double>(x) * static_cast<double>(x);
      std::normal_distribution<double> normal(
          0, size * std::sqrt(squares / static_cast<double>(plane.size())));
      for (Half& x : plane) x = static_cast<Half>(static_cast<double>(x) + normal(random));
    }
  };
}

struct Text {
  std::vector<int32_t> context;  // Whole blocks.
  std::vector<int32_t> continuation;
};

std::vector<Text> Texts() {
  std::vector<Text> texts;
  for (const char* name : {"prose", "code"}) {
    const std::vector<int32_t>& ids = worker::testing::SharedReference().prompts.at(name).ids;
    const auto border = ids.begin() + 2 * kBlockTokens;
    texts.push_back({{ids.begin(), border}, {border, border + kBlockTokens}});
  }
  return texts;
}

class KnownNoiseTest : public ::testing::Test {
 protected:
  void SetUp() override { CAIRN_REQUIRE_MODEL(); }

  // A worker of its own namespace whose contexts are at the node.
  std::unique_ptr<WorkerEngine> Worker(const std::string& recipe) {
    WorkerEngine::Options options;
    options.model_path = worker::testing::ModelPath();
    options.arithmetic = worker::Arithmetic::kFloat32;
    options.max_context = 512;
    options.recipe = recipe;
    // All of it must come from the node, on a busy machine too.
    options.prefix.connect_deadline = std::chrono::seconds(60);
    options.prefix.match_deadline = std::chrono::seconds(60);
    options.prefix.stall_deadline = std::chrono::seconds(60);
    options.prefix.max_stall = std::chrono::seconds(60);
    options.push.push_deadline = std::chrono::seconds(60);
    options.prefix.choose = false;
    options.prefix.lend = false;
    auto engine = WorkerEngine::Create(options, std::make_unique<ChangingClient>(node_, change_));
    CAIRN_CHECK(engine.ok());
    for (const Text& text : Texts()) {
      worker::GenerateRequest request;
      request.prompt = worker::TokenPrompt{text.context};
      request.max_tokens = 1;
      EXPECT_OK((*engine)->Generate(request, {}));
    }
    EXPECT_TRUE((*engine)->WaitIdle(std::chrono::seconds(60)));
    return *std::move(engine);
  }

  static std::vector<float> Score(WorkerEngine& engine, const Text& text, bool cached) {
    worker::GenerateRequest request;
    request.prompt = worker::TokenPrompt{text.context};
    request.score_tokens = text.continuation;
    request.no_cache = !cached;
    std::vector<float> logits;
    worker::GenerateCallbacks callbacks;
    callbacks.on_scores = [&](size_t, size_t, std::span<const float> rows) {
      logits.insert(logits.end(), rows.begin(), rows.end());
      return true;
    };
    // A request takes KV from one that is about to end, instead of fetching it.
    EXPECT_TRUE(engine.WaitIdle(std::chrono::seconds(60)));
    const auto summary = engine.Generate(request, callbacks);
    EXPECT_OK(summary);
    if (summary.ok() && cached) {
      EXPECT_EQ(summary->fetched_tokens, text.context.size())
          << "shared: " << summary->shared_tokens << ", missed: " << Name(summary->miss_reason);
    }
    return logits;
  }

  // KL per token of the engine's continuations over fetched contexts, from those over computed
  // ones.
  double Divergence(WorkerEngine& engine) {
    std::vector<Group> groups;
    const std::vector<Text> texts = Texts();
    for (size_t t = 0; t < texts.size(); ++t) {
      if (full_.size() == t) full_.push_back(Score(engine, texts[t], /*cached=*/false));
      const std::vector<float> got = Score(engine, texts[t], /*cached=*/true);
      constexpr auto kVocab = static_cast<size_t>(worker::testing::kVocab);
      const auto row = [](const std::vector<float>& logits, size_t i) {
        return std::span(logits).subspan(i * kVocab, kVocab);
      };
      Group group;
      for (size_t i = 0; i + 1 < texts[t].continuation.size(); ++i) {
        group.value += Compare(row(full_[t], i), row(got, i), texts[t].continuation[i + 1]).kl;
        group.weight += 1;
      }
      groups.push_back(group);
    }
    return Bootstrap(groups).mean;
  }
  double Divergence(const std::string& recipe) {
    const double kl = Divergence(*Worker(recipe));
    std::printf("%-14s KL %.3g\n", recipe.c_str(), kl);
    return kl;
  }
  double Divergence(WorkerEngine& engine, const char* what, Change change) {
    change_ = std::move(change);
    const double kl = Divergence(engine);
    std::printf("%-14s KL %.3g\n", what, kl);
    return kl;
  }

  InMemoryCacheClient node_;
  Change change_;  // The change of all fetches.
  std::vector<std::vector<float>> full_;
};

TEST_F(KnownNoiseTest, RaisesTheDivergenceWithItsPower) {
  const auto raw = Worker("raw");
  EXPECT_EQ(Divergence(*raw, "none", nullptr), 0);
  const double small = Divergence(*raw, "noise .01", Noise(.01));
  const double medium = Divergence(*raw, "noise .03", Noise(.03));
  const double large = Divergence(*raw, "noise .1", Noise(.1));
  EXPECT_GT(small, 1e-6);
  // Divergence goes with the square of the error: about 9 and 11 times.
  EXPECT_GT(medium, 4 * small);
  EXPECT_LT(medium, 20 * small);
  EXPECT_GT(large, 5 * medium);
}

TEST_F(KnownNoiseTest, MistakesAreFarAboveNoise) {
  const auto raw = Worker("raw");
  const double noise = Divergence(*raw, "noise .1", Noise(.1));
  const double heads = Divergence(*raw, "heads swapped", [](auto k, auto v, uint32_t) {
    for (const auto plane : {k, v}) {
      const auto first = plane.first(kHead);
      std::swap_ranges(first.begin(), first.end(), plane.subspan(kHead).begin());
    }
  });
  // Not the keys with them: attention does not ask for the order of pairs.
  const double shifted = Divergence(*raw, "values shifted", [](auto, auto v, uint32_t) {
    std::rotate(v.begin(), v.begin() + kDim, v.end());
  });
  const double sink = Divergence(*raw, "sink dropped", [](auto k, auto v, uint32_t block) {
    if (block > 0) return;
    for (const auto plane : {k, v}) {
      for (size_t head = 0; head < kHeads; ++head) {
        const auto token = plane.subspan(head * kHead, kDim);
        std::fill(token.begin(), token.end(), Half{0});
      }
    }
  });
  const double scales = Divergence(*raw, "K and V scales", [](auto k, auto v, uint32_t) {
    const auto rms = [](auto plane) {
      double squares = 0;
      for (const Half x : plane) squares += static_cast<double>(x) * static_cast<double>(x);
      return std::sqrt(squares);
    };
    const double ratio = rms(v) / rms(k);
    for (Half& x : k) x = static_cast<Half>(static_cast<double>(x) * ratio);
    for (Half& x : v) x = static_cast<Half>(static_cast<double>(x) / ratio);
  });
  for (const double kl : {heads, shifted, sink, scales}) EXPECT_GT(kl, 3 * noise);
}

TEST_F(KnownNoiseTest, FewerBitsDivergeMore) {
  const double int8 = Divergence("int8");
  const double int4 = Divergence("int4");
  const double turbo4 = Divergence("turbo:bits=4");
  const double turbo3 = Divergence("turbo:bits=3");
  const double turbo2 = Divergence("turbo:bits=2");
  EXPECT_GT(int8, 1e-6);  // Less would mean that something was computed again.
  EXPECT_GT(int4, 5 * int8);
  EXPECT_GT(turbo4, 5 * int8);
  EXPECT_GT(turbo3, 1.5 * std::max(int4, turbo4));
  EXPECT_GT(turbo2, 1.5 * turbo3);
}

}  // namespace
}  // namespace cairn::cli
