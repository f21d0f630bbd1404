// A real worker answers while nodes of its cluster are lost: first the one that holds its prompts'
// KV, then its home. No request fails, and each answer is that of a worker without a cache.

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "tests/fault/cluster/cluster_on_lab.h"
#include "tests/integration/worker_support.h"

namespace cairn::fault {
namespace {

using testing::Answer;
using testing::NetworkLab;
using testing::WorkerProcess;

// Small, so that a prompt is computed in moments.
constexpr char kModel[] = "tests/data/gguf/kquant.gguf";
constexpr uint32_t kTokens = 970;  // Tokens of a prompt: 15 full blocks and a rest.
// Seven of eight such prompts have a waymark, by which other nodes find them.
constexpr uint32_t kPrompts = 24;
constexpr size_t kHolder = 0, kHome = 1, kSpare = 2;
// Limit for one request, with room for a busy machine: an answer is computed in a fraction of a
// second, and a lost node costs the deadlines below.
constexpr seconds kLongestRequest(60);

enum class Loss { kKilled, kStopped, kCutOff };
const char* Name(Loss loss) {
  switch (loss) {
    case Loss::kKilled:
      return "Killed";
    case Loss::kStopped:
      return "Stopped";
    case Loss::kCutOff:
      return "CutOff";
  }
  return "";
}

Answer Ask(WorkerProcess& worker, uint32_t prompt) {
  return worker.Generate(kTokens, /*seed=*/prompt + 1);
}

class ClusterAnswersLabTest : public ::testing::TestWithParam<Loss> {
 protected:
  void SetUp() override {
    if (const Status can = NetworkLab::Available(); !can.ok()) GTEST_SKIP() << can.message();
    // Longer than the default, so that a busy machine finds what is there.
    auto made = ClusterOnLab::Start({.args = {"--cluster.lookup_deadline", "200ms"}});
    ASSERT_TRUE(made.ok()) << made.status();
    cluster_ = *std::move(made);
    const Status whole = cluster_->WaitUntilWhole();
    ASSERT_TRUE(whole.ok()) << whole;
  }

  // It prefers the node on the machine that it says it is on.
  static std::unique_ptr<WorkerProcess> Worker(const std::string& cache) {
    auto worker = WorkerProcess::Start(
        cache, {"--model", kModel, "--cache.host", fmt::format("machine-{}", kHome),
                "--cache.match_deadline", "500ms", "--cache.stall_deadline", "250ms"});
    EXPECT_TRUE(worker.ok()) << worker.status();
    return worker.ok() ? *std::move(worker) : nullptr;
  }

  // The answers of a worker without a cache to each prompt.
  static const std::vector<Answer>& Expected() {
    static const std::vector<Answer> answers = [] {
      std::vector<Answer> all;
      const auto worker = Worker("");
      for (uint32_t prompt = 0; worker && prompt < kPrompts; ++prompt) {
        all.push_back(Ask(*worker, prompt));
        EXPECT_TRUE(all.back().status.ok()) << all.back().status;
        EXPECT_FALSE(all.back().logits_digest.empty());
      }
      return all;
    }();
    return answers;
  }

  // Asks, and compares.
  void AskOne(WorkerProcess& worker, uint32_t prompt) {
    const auto begin = std::chrono::steady_clock::now();
    const Answer answer = Ask(worker, prompt);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kLongestRequest) << prompt;
    EXPECT_TRUE(answer.status.ok()) << prompt << ": " << answer.status;
    EXPECT_EQ(answer.tokens, Expected()[prompt].tokens) << prompt;
    EXPECT_EQ(answer.logits_digest, Expected()[prompt].logits_digest) << prompt;
    fetched_tokens_ += answer.fetched_tokens;
  }

  // Two callers ask prompts [first, end), each once. Meanwhile, after some answers, `harm` is done.
  // Returns the tokens that were fetched.
  uint64_t AskWhile(WorkerProcess& worker, uint32_t first, uint32_t end,
                    const std::function<void()>& harm) {
    fetched_tokens_ = 0;
    std::atomic<uint32_t> next{first}, answered{0};
    const auto ask = [&] {
      for (uint32_t prompt = next++; prompt < end; prompt = next++) {
        AskOne(worker, prompt);
        ++answered;
        answered.notify_all();
      }
    };
    std::thread one(ask), two(ask);
    // One answer was given, and two are under way.
    answered.wait(0);
    harm();
    one.join();
    two.join();
    return fetched_tokens_;
  }

  void Lose(size_t node) {
    switch (GetParam()) {
      case Loss::kKilled:
        cluster_->Kill(node);
        break;
      case Loss::kStopped:
        cluster_->process(node).Signal(SIGSTOP);
        break;
      case Loss::kCutOff: {
        const Status cut = cluster_->lab().Isolate(node);
        EXPECT_TRUE(cut.ok()) << cut;
        break;
      }
    }
  }

  // From other members, so far.
  double ReadBytes(size_t node) {
    const auto bytes = cluster_->Metric(node, "cairn_cluster_bytes_total", R"(direction="read")");
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.ok() ? *bytes : 0;
  }

  std::unique_ptr<ClusterOnLab> cluster_;
  std::atomic<uint64_t> fetched_tokens_{0};
};

TEST_P(ClusterAnswersLabTest, LosingTheHolderAndThenTheHomeChangesNoAnswer) {
  ASSERT_EQ(Expected().size(), kPrompts);
  {
    // Only the holder has the KV of all prompts.
    const auto writer = Worker(cluster_->Address(kHolder));
    ASSERT_NE(writer, nullptr);
    for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) AskOne(*writer, prompt);
    ASSERT_TRUE(writer->WaitIdle());
  }
  const double home_before = ReadBytes(kHome), spare_before = ReadBytes(kSpare);
  const auto worker =
      Worker(fmt::format("{},{}", cluster_->Address(kHome), cluster_->Address(kSpare)));
  ASSERT_NE(worker, nullptr);
  ASSERT_TRUE(worker->WaitConnected(true));

  // The holder is lost while it is read through the home.
  const uint32_t third = kPrompts / 3;
  EXPECT_GT(AskWhile(*worker, 0, third, [] {}), 0U) << "nothing came through the home";
  EXPECT_GT(ReadBytes(kHome), home_before);
  EXPECT_EQ(ReadBytes(kSpare), spare_before) << "the home is another node than the test thinks";
  AskWhile(*worker, third, 2 * third, [&] { Lose(kHolder); });

  // Then the home, and the spare node takes its place: what it gets now, it can give.
  ASSERT_TRUE(worker->WaitIdle());
  AskWhile(*worker, 0, third, [&] { Lose(kHome); });
  AskWhile(*worker, 2 * third, kPrompts, [] {});
  ASSERT_TRUE(worker->WaitIdle());
  EXPECT_GT(AskWhile(*worker, 2 * third, kPrompts, [] {}), 0U) << "the spare node does not serve";
  for (const size_t lost : {kHolder, kHome}) {
    if (GetParam() == Loss::kStopped) cluster_->process(lost).Signal(SIGCONT);
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, ClusterAnswersLabTest,
                         ::testing::Values(Loss::kKilled, Loss::kStopped, Loss::kCutOff),
                         [](const auto& test) { return Name(test.param); });

}  // namespace
}  // namespace cairn::fault
