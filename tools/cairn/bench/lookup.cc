// exists and match: many keys a call, no bytes.

#include <algorithm>
#include <chrono>

#include "tools/cairn/bench/cpu_meter.h"
#include "tools/cairn/bench/operations.h"
#include "tools/cairn/bench/statistics.h"
#include "tools/cairn/bench/test_node.h"
#include "tools/cairn/bench/workloads.h"

namespace cairn::cli::bench {
namespace {

constexpr uint64_t kGeneration = 1, kAbsent = 2;

struct Question {
  std::vector<BlockKey> keys;
  uint32_t prefix = 0;  // The first keys, without a gap, that are there.
};

// The part that both share: a node full of small blocks, calls of --batch keys with known answers.
class Lookup : public Workload {
 public:
  explicit Lookup(const BenchOptions& options) : options_(options) {}

  Status Prepare() override {
    CAIRN_ASSIGN_OR_RETURN(set_, BlockSet::Make({.block_bytes = options_.block_bytes,
                                                 .layers = options_.layers,
                                                 .blocks = options_.blocks()}));
    CAIRN_ASSIGN_OR_RETURN(
        node_, TestNode::Start(options_, {.host_bytes = 2 * options_.data_bytes +
                                                        uint64_t{set_->blocks()} * 8192 +
                                                        (uint64_t{64} << 20)}));
    CAIRN_ASSIGN_OR_RETURN(clients_, ConnectAll(*node_, options_, set_->spec()));
    CAIRN_RETURN_IF_ERROR(Store(*clients_[0], *set_, kGeneration, options_.batch));
    for (uint32_t begin = 0; begin < set_->blocks(); begin += options_.batch) {
      questions_.push_back(MakeQuestion(static_cast<uint32_t>(questions_.size()), begin));
    }
    return OkStatus();
  }

  Result<std::vector<Metric>> Trial(double seconds) override {
    const CpuMeter cpu(Children());
    const Operations run = RunOperations(options_.clients * options_.depth, UINT32_MAX, seconds,
                                         [&](uint32_t thread, uint32_t i) {
                                           return Ask(thread, *clients_[thread % clients_.size()],
                                                      questions_[i % questions_.size()]);
                                         });
    CAIRN_RETURN_IF_ERROR(run.status);
    const double keys = static_cast<double>(run.done) * options_.batch;
    return std::vector<Metric>{{"keys", "keys/s", keys / run.seconds},
                               {"p50", "us", Percentile(run.latencies_us, 0.5)},
                               {"p99", "us", Percentile(run.latencies_us, 0.99)},
                               {"cpu", "core-us/key", cpu.Read().own_seconds * 1e6 / keys}};
  }

  std::vector<pid_t> Children() const override { return node_->Pids(); }

  std::vector<std::pair<std::string, std::string>> Facts() const override {
    return {{"path", std::string(client::Name(clients_[0]->GetStats().path))}};
  }

 protected:
  // Asks for the stored blocks from `begin` on, and for some that are not there.
  virtual Question MakeQuestion(uint32_t number, uint32_t begin) = 0;
  // DATA_LOSS when the answer is wrong.
  virtual Status Ask(uint32_t thread, client::CacheClient& client, const Question& question) = 0;

  const BenchOptions options_;
  std::shared_ptr<const BlockSet> set_;

 private:
  std::unique_ptr<TestNode> node_;
  std::vector<std::unique_ptr<client::CacheClient>> clients_;
  std::vector<Question> questions_;
};

class Exists final : public Lookup {
 public:
  using Lookup::Lookup;

 private:
  static constexpr size_t kAbsentEvery = 16;

  Question MakeQuestion(uint32_t, uint32_t begin) override {
    Question question{.keys = set_->Keys(kGeneration, begin, begin + options_.batch)};
    for (size_t i = kAbsentEvery - 1; i < question.keys.size(); i += kAbsentEvery) {
      question.keys[i] = set_->Key(kAbsent, begin + static_cast<uint32_t>(i));
    }
    return question;
  }

  Status Ask(uint32_t, client::CacheClient& client, const Question& question) override {
    CAIRN_ASSIGN_OR_RETURN(const auto tiers,
                           client.Exists(set_->fingerprint(), question.keys, PatientCall()));
    for (size_t i = 0; i < question.keys.size(); ++i) {
      if (tiers[i].has_value() == (i % kAbsentEvery == kAbsentEvery - 1)) {
        return Errorf(StatusCode::kDataLoss, "exists gave a wrong answer for key {}", i);
      }
    }
    return OkStatus();
  }
};

class Match final : public Lookup {
 public:
  explicit Match(const BenchOptions& options)
      : Lookup(options), grants_us_(options.clients * options.depth) {}

  Result<std::vector<Metric>> Trial(double seconds) override {
    for (auto& lane : grants_us_) lane.clear();
    CAIRN_ASSIGN_OR_RETURN(std::vector<Metric> metrics, Lookup::Trial(seconds));
    std::vector<double> all;
    for (const auto& lane : grants_us_) all.insert(all.end(), lane.begin(), lane.end());
    metrics.push_back({"answer p50", "us", Percentile(std::move(all), 0.5)});
    return metrics;
  }

 private:
  // Every eighth chain breaks off in the middle.
  Question MakeQuestion(uint32_t number, uint32_t begin) override {
    Question question{.keys = set_->Keys(kGeneration, begin, begin + options_.batch),
                      .prefix = options_.batch};
    if (number % 8 == 7 && options_.batch > 1) {
      question.prefix = options_.batch / 2;
      for (uint32_t i = question.prefix; i < options_.batch; ++i) {
        question.keys[i] = set_->Key(kAbsent, begin + i);
      }
    }
    return question;
  }

  Status Ask(uint32_t thread, client::CacheClient& client, const Question& question) override {
    client::MatchOptions options = PatientMatch();
    options.lease = options_.lease;
    const auto begin = std::chrono::steady_clock::now();
    CAIRN_ASSIGN_OR_RETURN(const client::MatchOutcome match,
                           client.Match(set_->fingerprint(), question.keys, options));
    grants_us_[thread].push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
    if (match.matched_blocks == question.prefix) return OkStatus();
    return Errorf(StatusCode::kDataLoss, "{} blocks matched, expected {}", match.matched_blocks,
                  question.prefix);
  }

  // Times of the match alone, without giving the lease back; one list a thread.
  std::vector<std::vector<double>> grants_us_;
};

}  // namespace

std::unique_ptr<Workload> NewExists(const BenchOptions& options) {
  return std::make_unique<Exists>(options);
}
std::unique_ptr<Workload> NewMatch(const BenchOptions& options) {
  return std::make_unique<Match>(options);
}

}  // namespace cairn::cli::bench
