// Milliseconds of a decode step over a long context: with all KV resident, with all KV fetched from
// a far tier at each step, with a fifth of the KV resident and nothing else, as after a selection
// of a fifth of the tokens, and read by rows under each policy given.
//
// --help prints the arguments; the report goes to standard output.
//
// The context is real text, prefilled once; each mode decodes the same tokens after it, and modes
// take turns. The far tier is host memory behind a limit of X GB/s (0: none) with a thread of its
// own. "fetch-all" copies each layer's KV from it into the pages, layer after layer, ahead of the
// computing as far as the tier allows. Next to the time on the clock is the processor time of all
// threads, which tells more where the machine has other work.
//
// With --node, rows come from a cache node that runs at this address. The context is pushed to it
// first, where it has not got it from an earlier run: a node that was started again since, with
// less memory than the context takes, has most of it on disk only.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/micro/reading_node.h"
#include "benchmarks/micro/reading_programs.h"
#include "common/concurrency/executor.h"
#include "services/worker/methods/reading/background_rows.h"

namespace cairn::worker {
namespace {

constexpr char kUsage[] =
    "reading_bench [--model FILE] [--text FILE] [--tokens N] [--steps N] [--threads N]\n"
    "           [--far-gbps X] [--node ADDRESS] [--trials N] [--policy POLICY]... > report.json";

struct Options {
  std::string model = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  std::string text = "docs/methods/fidelity.md";
  int64_t tokens = 8064;
  int64_t steps = 24;
  int threads = 1;
  int trials = 3;
  double far_gbps = 4;
  std::string node;
  std::vector<std::string> policies;
};

double Median(std::vector<double> x) {
  std::ranges::sort(x);
  return x[x.size() / 2];
}

double ProcessorSeconds() {
  timespec used{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0) Stop("no clock of processor time");
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// The seconds of each step.
struct StepSeconds {
  std::vector<double> clock, processor;
};

// Brings a sequence's layers from far memory into its pages, one after the other.
class AllFetched {
 public:
  AllFetched(KvSequence& sequence, int64_t pages, double gbps)
      : sequence_(sequence), kv_(sequence.layout()), pages_(pages), gbps_(gbps) {
    far_.resize(static_cast<size_t>(pages) * kv_.page_bytes());
    for (int64_t page = 0; page < pages; ++page) {
      std::memcpy(far_.data() + static_cast<size_t>(page) * kv_.page_bytes(),
                  sequence.LayerSlice(page, 0).data(), kv_.page_bytes());
    }
  }

  // The copying runs during the step.
  void Begin() {
    here_.store(0);
    copier_ = std::jthread([this] {
      const auto start = std::chrono::steady_clock::now();
      for (int layer = 0; layer < kv_.layers; ++layer) {
        for (int64_t page = 0; page < pages_; ++page) {
          std::memcpy(sequence_.LayerSlice(page, layer).data(),
                      far_.data() + static_cast<size_t>(page) * kv_.page_bytes() +
                          static_cast<size_t>(layer) * kv_.layer_bytes(),
                      kv_.layer_bytes());
        }
        if (gbps_ > 0) {
          const double bytes =
              static_cast<double>(layer + 1) * static_cast<double>(pages_ * kv_.layer_bytes());
          std::this_thread::sleep_until(start +
                                        std::chrono::duration_cast<std::chrono::nanoseconds>(
                                            std::chrono::duration<double>(bytes / gbps_ / 1e9)));
        }
        here_.store(layer + 1);
        here_.notify_all();
      }
    });
  }
  Status Wait(int layer) {
    for (int now = here_.load(); now <= layer; now = here_.load()) here_.wait(now);
    return OkStatus();
  }
  void End() { copier_ = {}; }

 private:
  KvSequence& sequence_;
  const KvLayout kv_;
  const int64_t pages_;
  const double gbps_;
  std::vector<std::byte> far_;
  std::atomic<int> here_{0};
  std::jthread copier_;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        model_(options.model, {.threads = options.threads}),
        pool_(Must(KvPool::Create(model_.kv(), PoolPages() * model_.kv().page_bytes()))),
        sequence_(pool_->NewSequence()),
        fifth_(pool_->NewSequence()) {
    std::ifstream file(options.text);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    tokens_ = Must(model_.model().tokenizer().Encode(text, false));
    if (std::ssize(tokens_) < options.tokens + options.steps) {
      Stop(fmt::format("{}: {} tokens, expected at least {}", options.text, tokens_.size(),
                       options.tokens + options.steps));
    }
    Prefill(sequence_, options.tokens);
    Prefill(fifth_, options.tokens / 5);
    if (options.node.empty()) return;
    node_ = std::make_unique<const ContextAtNode>(
        options.node, model_, sequence_,
        std::span(tokens_).first(static_cast<size_t>(options.tokens)));
  }

  // Seconds of each step; the sequence is then as before.
  StepSeconds Resident() { return Decode(sequence_, nullptr, nullptr); }
  StepSeconds FifthResident() { return Decode(fifth_, nullptr, nullptr); }
  StepSeconds FetchAll() {
    AllFetched all(sequence_, options_.tokens / sequence_.layout().block_tokens, options_.far_gbps);
    return Decode(sequence_, nullptr, &all);
  }
  StepSeconds Read(const std::string& policy, std::string* report) {
    cairn::ThreadPool executor({.name = "far", .threads = 1});
    ReadingTerms terms = model_.Terms(policy, "calibration");
    const KvLayout& kv = model_.kv();
    terms.source = [&](std::shared_ptr<const FarPages> pages) -> std::unique_ptr<RowSource> {
      if (node_ != nullptr) return node_->Rows(executor);
      return std::make_unique<BackgroundRows>(
          std::make_unique<PageRows>(std::move(pages)), executor, SteadyClock::Get(),
          BackgroundRows::Options{
              .bytes_per_second = static_cast<uint64_t>(options_.far_gbps * 1e9),
              .row_bytes = kv.row_bytes()});
    };
    const TimePoint start = SteadyClock::Get().Now();
    auto reader = Must(OpenContext(terms, sequence_, options_.tokens, options_.steps,
                                   model_.transformer().thread_pool()));
    const double open = Seconds(SteadyClock::Get().Now() - start);
    KvSequence own = pool_->NewSequence();
    own.StartAt(options_.tokens);
    Must(own.Reserve(options_.tokens + options_.steps));
    const ContextAtNode::Sent before = node_ ? node_->GetSent() : ContextAtNode::Sent();
    const ContextAtNode::Asked asked_before = node_ ? node_->GetAsked() : ContextAtNode::Asked();
    const StepSeconds seconds = Decode(own, reader.get(), nullptr);
    const ReadCounters& c = reader->counters();
    const double all =
        static_cast<double>(options_.tokens) * static_cast<double>(kv.bytes_per_token());
    const auto share = [&](uint64_t n) {
      return static_cast<double>(n) / static_cast<double>(std::max<uint64_t>(1, c.chosen_rows));
    };
    *report = fmt::format(
        "\"near_share\": {:.4f}, \"open_s\": {:.3f}, \"hit_share\": {:.3f}, \"late_share\": "
        "{:.3f}, "
        "\"read_share_of_a_step\": {:.5f}",
        static_cast<double>(reader->near().total() - reader->near().own_bytes) / all, open,
        share(c.hit_rows), share(c.late_rows),
        static_cast<double>(c.read_bytes) / static_cast<double>(c.steps) / all);
    if (node_ == nullptr) return seconds;
    const ContextAtNode::Sent sent = node_->GetSent();
    *report += fmt::format(", \"from_disk_share\": {:.3f}",
                           static_cast<double>(sent.disk - before.disk) /
                               static_cast<double>(std::max<uint64_t>(1, sent.all - before.all)));
    ContextAtNode::Asked& asked = asked_[policy];
    asked.rows += node_->GetAsked().rows - asked_before.rows;
    asked.rounded += node_->GetAsked().rounded - asked_before.rounded;
    *report +=
        fmt::format(", \"asked_bytes\": {}, \"asked_4k_bytes\": {}", asked.rows, asked.rounded);
    return seconds;
  }

 private:
  size_t PoolPages() const {
    const int64_t tokens = options_.tokens + options_.tokens / 5 + 2 * options_.steps;
    return static_cast<size_t>(tokens / model_.kv().block_tokens + 6);
  }
  void Prefill(KvSequence& sequence, int64_t tokens) {
    Must(sequence.Reserve(tokens + options_.steps));
    model_.Prefill(sequence, std::span(tokens_).first(static_cast<size_t>(tokens)));
  }
  StepSeconds Decode(KvSequence& sequence, DecodeReader* reader, AllFetched* all) {
    StepSeconds seconds;
    const int64_t before = sequence.length();
    for (int64_t i = 0; i < options_.steps; ++i) {
      const TimePoint start = SteadyClock::Get().Now();
      const double used = ProcessorSeconds();
      std::function<Status(int)> wait;
      if (all != nullptr) {
        all->Begin();
        wait = [all](int layer) { return all->Wait(layer); };
      }
      model_.Decode(sequence, tokens_[static_cast<size_t>(options_.tokens + i)], reader, wait);
      seconds.clock.push_back(Seconds(SteadyClock::Get().Now() - start));
      if (all != nullptr) all->End();
      seconds.processor.push_back(ProcessorSeconds() - used);
    }
    sequence.SetLength(before);
    return seconds;
  }

  const Options options_;
  ReadingModel model_;
  const std::unique_ptr<KvPool> pool_;
  KvSequence sequence_;
  KvSequence fifth_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<const ContextAtNode> node_;          // Null: rows come from host memory.
  std::map<std::string, ContextAtNode::Asked> asked_;  // By policy, in all trials.
};

Options Parse(int argc, char** argv) {
  Options o;
  ReadFlags(argc, argv, kUsage, [&](const std::string& flag, const std::string& value) {
    if (flag == "--model") {
      o.model = value;
    } else if (flag == "--text") {
      o.text = value;
    } else if (flag == "--tokens") {
      o.tokens = std::atoll(value.c_str()) / 64 * 64;
    } else if (flag == "--steps") {
      o.steps = std::atoll(value.c_str());
    } else if (flag == "--threads") {
      o.threads = std::atoi(value.c_str());
    } else if (flag == "--trials") {
      o.trials = std::atoi(value.c_str());
    } else if (flag == "--far-gbps") {
      o.far_gbps = std::atof(value.c_str());
    } else if (flag == "--node") {
      o.node = value;
    } else if (flag == "--policy") {
      o.policies.push_back(value);
    } else {
      return false;
    }
    return true;
  });
  return o;
}

void Run(const Options& options) {
  Bench bench(options);
  struct Mode {
    std::string name;
    StepSeconds steps;  // The steps of all trials.
    std::string report;
  };
  std::vector<Mode> modes = {
      {"resident", {}, ""}, {"fetch-all", {}, ""}, {"fifth-resident", {}, "\"near_share\": 0.2"}};
  for (const std::string& policy : options.policies) modes.push_back({policy, {}, ""});
  for (int trial = 0; trial < options.trials; ++trial) {
    for (size_t m = 0; m < modes.size(); ++m) {
      const StepSeconds steps = m == 0   ? bench.Resident()
                                : m == 1 ? bench.FetchAll()
                                : m == 2 ? bench.FifthResident()
                                         : bench.Read(modes[m].name, &modes[m].report);
      // The first steps fill working sets and caches.
      const auto add = [&](const std::vector<double>& from, std::vector<double>& to) {
        to.insert(to.end(), from.begin() + options.steps / 4, from.end());
      };
      add(steps.clock, modes[m].steps.clock);
      add(steps.processor, modes[m].steps.processor);
    }
  }
  std::printf(
      "{\"tokens\": %lld, \"steps\": %lld, \"trials\": %d, \"threads\": %d, "
      "\"far_gbps\": %g, \"rows\": [\n",
      static_cast<long long>(options.tokens), static_cast<long long>(options.steps), options.trials,
      options.threads, options.far_gbps);
  for (size_t m = 0; m < modes.size(); ++m) {
    std::printf("  {\"mode\": \"%s\", \"step_ms\": %.2f, \"processor_ms\": %.2f%s%s}%s\n",
                modes[m].name.c_str(), 1e3 * Median(modes[m].steps.clock),
                1e3 * Median(modes[m].steps.processor), modes[m].report.empty() ? "" : ", ",
                modes[m].report.c_str(), m + 1 < modes.size() ? "," : "");
  }
  std::printf("]}\n");
}

}  // namespace
}  // namespace cairn::worker

int main(int argc, char** argv) { cairn::worker::Run(cairn::worker::Parse(argc, argv)); }
