// Match with its lease, as the engine does it, for prompts of 128k tokens in an index of a million
// blocks, while another thread inserts and evicts.
//
//   index_bench [--json]
//
// Then lookups of 1,024 keys without the other thread, in keys per second: match with its lease and
// release, exists of neighbours on a path, exists of keys in random order.
//
// Prompts form a random tree: each branches off an earlier one at a random block, and blocks arrive
// in random interleaving. Prompts are matched in random order; a measurement is Match (walk, pin,
// lease) without Release. Results are checked once before timing.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "services/cache/store/engine/read_path.h"
#include "services/cache/store/tier/host_tier.h"

namespace cairn::cache {
namespace {

constexpr size_t kBlocks = 1'000'000;
constexpr uint32_t kPromptTokens = 128 * 1024;
constexpr int kRounds = 5;
constexpr int kMatchesPerRound = 300;
// At least this many blocks come, and go, per match: also where the other thread gets little of the
// machine.
constexpr uint64_t kChurnPerMatch = 8;
constexpr size_t kKeysPerCall = 1024;
constexpr int kCallsPerRound = 2000;

class Bench {
 public:
  explicit Bench(uint32_t block_tokens)
      : rng_(block_tokens), blocks_per_prompt_(kPromptTokens / block_tokens) {
    NamespaceSpec spec;
    spec.model = std::string("bench");
    spec.revision = std::string("1");
    spec.numerics = std::string("any");
    spec.layout.block_tokens = block_tokens;
    spec.layout.form = OpaqueLayout{std::string("bench"), 1 << 20, 1};
    const auto stored = StoredNamespace::Of(std::move(spec));
    ns_ = context_.registry
              .Open(stored->fingerprint, stored->spec.tenant,
                    [&](uint64_t generation) {
                      return std::make_shared<NamespaceState>(
                          stored, generation, context_.options.eviction, context_.seed);
                    })
              ->state;
    session_ = *sessions_.Open("bench", "");
  }

  void Build() {
    size_t planned = 0;
    while (planned < kBlocks) {
      std::vector<BlockKey> prompt;
      if (!prompts_.empty() && rng_() % 16 != 0) {
        const auto& other = prompts_[rng_() % prompts_.size()];
        prompt.assign(other.begin(), other.begin() + static_cast<ptrdiff_t>(rng_() % other.size()));
      }
      shared_.push_back(prompt.size());
      while (prompt.size() < blocks_per_prompt_) prompt.push_back(RandomKey());
      planned += prompt.size() - shared_.back();
      prompts_.push_back(std::move(prompt));
    }
    // 64 blocks of a random prompt at a time, as workers push them.
    std::vector<size_t> next = shared_;
    std::vector<size_t> open(prompts_.size());
    for (size_t i = 0; i < open.size(); ++i) open[i] = i;
    while (!open.empty()) {
      const size_t at = rng_() % open.size();
      const size_t p = open[at];
      for (int i = 0; i < 64 && next[p] < prompts_[p].size(); ++i, ++next[p]) {
        Insert(prompts_[p][next[p]], next[p] == 0 ? nullptr : &prompts_[p][next[p] - 1], 1);
      }
      if (next[p] == prompts_[p].size()) {
        open[at] = open.back();
        open.pop_back();
      }
    }
  }

  bool Verify() {
    for (const auto& prompt : prompts_) {
      const auto match = Match(prompt);
      if (!match.ok() || match->matched_blocks != prompt.size() || !match->lease) return false;
      Release(*match->lease);
      std::vector<BlockKey> other = prompt;
      other[other.size() / 2].bytes[31] ^= 1;
      const auto half = Match(other);
      if (!half.ok() || half->matched_blocks != other.size() / 2) return false;
      Release(*half->lease);
    }
    return ns_->blocks.load() >= kBlocks;
  }

  // Milliseconds of each match, while blocks come and go.
  std::vector<double> Round() {
    std::atomic<bool> stop{false};
    std::thread churn([&] { Churn(stop); });
    std::vector<double> times;
    const uint64_t churned_before = churned_;
    for (int i = 0; i < kMatchesPerRound; ++i) {
      while (churned_ - churned_before < i * kChurnPerMatch) std::this_thread::yield();
      const auto& prompt = prompts_[rng_() % prompts_.size()];
      const auto begin = std::chrono::steady_clock::now();
      const auto match = Match(prompt);
      const auto end = std::chrono::steady_clock::now();
      if (!match.ok() || match->matched_blocks != prompt.size()) std::abort();
      Release(*match->lease);
      times.push_back(std::chrono::duration<double, std::milli>(end - begin).count());
    }
    stop = true;
    churn.join();
    std::sort(times.begin(), times.end());
    return times;
  }

  enum class Lookup { kMatch, kExists, kExistsAnyOrder };
  // Millions of keys per second, of one round.
  double KeysPerMicrosecond(Lookup lookup) {
    std::vector<std::vector<BlockKey>> calls;
    for (int i = 0; i < 64; ++i) {
      if (lookup == Lookup::kExistsAnyOrder) {
        std::vector<BlockKey>& keys = calls.emplace_back();
        while (keys.size() < kKeysPerCall) {
          const auto& prompt = prompts_[rng_() % prompts_.size()];
          keys.push_back(prompt[rng_() % prompt.size()]);
        }
      } else {
        const auto& prompt = prompts_[rng_() % prompts_.size()];
        calls.emplace_back(prompt.begin(), prompt.begin() + kKeysPerCall);
      }
    }
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCallsPerRound; ++i) {
      const auto& keys = calls[static_cast<size_t>(i) % calls.size()];
      if (lookup == Lookup::kMatch) {
        const auto match = Match(keys);
        if (!match.ok() || match->matched_blocks != keys.size()) std::abort();
        Release(*match->lease);
      } else {
        const auto found = reads_.Exists(ns_->fingerprint, keys);
        if (!found.ok() || !found->front() || !found->back()) std::abort();
      }
    }
    const auto end = std::chrono::steady_clock::now();
    return kCallsPerRound * static_cast<double>(kKeysPerCall) /
           std::chrono::duration<double, std::micro>(end - begin).count();
  }

  double BytesPerBlock() const {
    return static_cast<double>(ns_->memory_bytes.load()) / static_cast<double>(ns_->blocks.load());
  }
  uint64_t churned() const { return churned_; }

 private:
  // New branches of old prompts, ranked lowest, and evictions: the million stays.
  void Churn(const std::atomic<bool>& stop) {
    std::mt19937_64 rng(7);
    while (!stop) {
      const auto& prompt = prompts_[rng() % prompts_.size()];
      const BlockKey* parent = &prompt[rng() % prompt.size()];
      std::vector<BlockKey> branch(32);
      for (BlockKey& key : branch) {
        for (size_t i = 0; i < 4; ++i) {
          const uint64_t word = rng();
          std::memcpy(key.bytes.data() + 8 * i, &word, 8);
        }
        Insert(key, parent, 0);
        parent = &key;
      }
      for (size_t i = 0; i < branch.size(); ++i) {
        NamespaceLock lock(*ns_, context_.tiers);
        ns_->index.EvictOne(TierKind::kHost, &lock.released);
        lock.released.clear();  // The index never looks at the bytes: there are none.
      }
      churned_ += branch.size();
      std::this_thread::yield();
    }
  }

  void Insert(const BlockKey& key, const BlockKey* parent, uint32_t now) {
    NamespaceLock lock(*ns_, context_.tiers);
    ns_->index.Insert(key, parent == nullptr ? std::nullopt : std::optional(*parent),
                      {PartPlace{ns_->whole, {4096, 0}, {1, 0}}}, TierKind::kHost, 0, now);
  }
  static std::unique_ptr<HostTier> MakeHost() {
    HostTierOptions options;
    options.capacity_bytes = 1 << 20;
    options.prefault = false;
    options.check_memory = false;
    return std::move(HostTier::Create(options)).value();
  }
  Result<MatchResult> Match(const std::vector<BlockKey>& keys) {
    return reads_.Match(
        {.session = session_, .fingerprint = ns_->fingerprint, .keys = keys, .trace = ""});
  }
  void Release(LeaseId lease) { (void)reads_.Release(session_, {&lease, 1}); }
  BlockKey RandomKey() {
    BlockKey key;
    for (size_t i = 0; i < 4; ++i) {
      const uint64_t word = rng_();
      std::memcpy(key.bytes.data() + 8 * i, &word, 8);
    }
    return key;
  }

  std::mt19937_64 rng_;
  const size_t blocks_per_prompt_;
  std::unique_ptr<HostTier> host_ = MakeHost();
  InlineExecutor executor_;
  NodeContext context_{EngineOptions{}, Tiers(host_.get()), &SteadyClock::Get(), &executor_};
  SessionTable sessions_{16, 4096};
  Evictor evictor_{&context_};
  Promoters promoters_{&context_, &evictor_};
  TransferBudget budget_{1 << 20, &context_.progress};
  ReadPath reads_{&context_,
                  &sessions_,
                  &promoters_,
                  &budget_,
                  /*source_reads=*/nullptr,
                  /*source=*/nullptr,
                  /*timers=*/nullptr};
  NamespacePtr ns_;
  SessionId session_ = 0;
  std::vector<std::vector<BlockKey>> prompts_;
  std::vector<size_t> shared_;
  std::atomic<uint64_t> churned_{0};
};

int Main(bool json) {
  double most_bytes = 0;
  constexpr std::pair<const char*, Bench::Lookup> kLookups[] = {
      {"match", Bench::Lookup::kMatch},
      {"exists", Bench::Lookup::kExists},
      {"exists_any_order", Bench::Lookup::kExistsAnyOrder}};
  std::string out;
  for (const uint32_t block_tokens : {64u, 16u}) {
    Bench bench(block_tokens);
    bench.Build();
    if (!bench.Verify()) {
      std::fprintf(stderr, "index_bench: wrong result with blocks of %u tokens\n", block_tokens);
      return 1;
    }
    std::vector<double> all;
    std::string samples;
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<double> times = bench.Round();
      samples += fmt::format("{}{:.4f}", round == 0 ? "" : ", ", times[times.size() / 2]);
      all.insert(all.end(), times.begin(), times.end());
    }
    std::sort(all.begin(), all.end());
    const double p50 = all[all.size() / 2];
    const double p99 = all[all.size() * 99 / 100];
    const double bytes = bench.BytesPerBlock();
    most_bytes = std::max(most_bytes, bytes);
    if (json) {
      out += fmt::format(
          "\"match128k/{}\": {{\"p50_ms\": {:.4f}, \"p99_ms\": {:.4f}, \"p50_ms_samples\": [{}], "
          "\"matches\": {}, \"churned_blocks\": {}, \"bytes_per_block\": {:.1f}}}, ",
          block_tokens, p50, p99, samples, all.size(), bench.churned(), bytes);
    } else {
      fmt::print(
          "match128k/{:<3} p50 {:.3f} ms  p99 {:.3f} ms  {:.1f} bytes/block  ({} matches, {} "
          "blocks came and went)\n",
          block_tokens, p50, p99, bytes, all.size(), bench.churned());
    }
    for (const auto& [name, lookup] : kLookups) {
      std::vector<double> rates;
      for (int round = 0; round < kRounds; ++round)
        rates.push_back(bench.KeysPerMicrosecond(lookup));
      std::sort(rates.begin(), rates.end());
      if (json) {
        out += fmt::format("\"{}1024/{}\": {{\"mkeys_per_s\": {:.2f}, \"samples\": [{:.2f}]}}, ",
                           name, block_tokens, rates[kRounds / 2], fmt::join(rates, ", "));
      } else {
        fmt::print("{}1024/{:<3} {:.1f} M keys/s  ({:.1f} to {:.1f})\n", name, block_tokens,
                   rates[kRounds / 2], rates.front(), rates.back());
      }
    }
  }
  if (json)
    fmt::print("{{{}\"blocks\": {}, \"bytes_per_block\": {:.1f}}}\n", out, kBlocks, most_bytes);
  return 0;
}

}  // namespace
}  // namespace cairn::cache

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  if (argc > (json ? 2 : 1)) {
    std::fprintf(stderr, "usage: index_bench [--json]\n");
    return 2;
  }
  return cairn::cache::Main(json);
}
