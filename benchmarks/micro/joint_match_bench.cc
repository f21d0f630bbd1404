// A match over four pools with its lease, as the engine does it, for prompts of 150,000 tokens in
// units of 16, in an index of a million blocks.
//
//   joint_match_bench [--json]
//
//   pool     blocks of 16 tokens that are stored        what a length needs
//   full     all                                        all
//   draft    all                                        all, and one more
//   window   the last 1,024 tokens before a boundary    the last 1,023 tokens
//   state    one at each boundary                       the one that ends there
//
// Boundaries are every 8,192 tokens, as an engine's chunks of a prefill leave them, and the end of
// the prompt. Measured are the match that asks for the longest length, and the one that asks for
// all of them. Results are checked once before timing.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "services/cache/store/engine/read_path.h"
#include "services/cache/store/tier/host_tier.h"

namespace cairn::cache {
namespace {

constexpr uint32_t kUnit = 16;
constexpr uint32_t kUnits = 150'000 / kUnit;
constexpr uint32_t kBoundary = 8192 / kUnit;
constexpr uint32_t kWindow = 1024 / kUnit;
constexpr size_t kPrompts = 50;
constexpr int kRounds = 5;
constexpr int kMatchesPerRound = 200;
enum PoolNumber : uint32_t { kFull, kDraft, kWindowed, kState };

class Bench {
 public:
  Bench() {
    NamespaceSpec spec;
    spec.model = std::string("bench");
    spec.revision = std::string("1");
    spec.numerics = std::string("any");
    spec.layout.block_tokens = kUnit;
    spec.layout.form = OpaqueLayout{.description = std::string("bench"),
                                    .pools = {{"full", kUnit, 1, 1 << 20, true},
                                              {"draft", kUnit, 1, 1 << 20, true},
                                              {"window", kUnit, 1, 1 << 20, false},
                                              {"state", kUnit, 1, 1 << 20, false}}};
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
    for (size_t p = 0; p < kPrompts; ++p) {
      std::vector<BlockKey>& units = prompts_.emplace_back(kUnits);
      for (BlockKey& key : units) key = RandomKey();
      for (const PoolNumber pool : {kFull, kDraft}) {
        for (uint32_t b = 0; b < kUnits; ++b) Insert(units, pool, b, b > 0);
      }
      for (uint32_t end = kBoundary; end <= kUnits; end += kBoundary) StoreTail(units, end);
      if (kUnits % kBoundary > 1) StoreTail(units, kUnits - 1);
    }
  }

  bool Verify() {
    for (const auto& units : prompts_) {
      const auto match = Match(units, true);
      if (!match.ok() || !match->lease) return false;
      Release(*match->lease);
      const JointAnswer& joint = match->joint;
      // The draft's proof is the block after it.
      if (joint.restorable_tokens != uint64_t{kUnits - 1} * kUnit) return false;
      for (uint32_t n = 1; n <= kUnits; ++n) {
        const bool boundary = n % kBoundary == 0 || n == kUnits - 1;
        if (joint.Restorable(uint64_t{n} * kUnit, kUnit) != boundary) return false;
      }
    }
    return true;
  }

  // Milliseconds of each match of a round.
  std::vector<double> Round(bool all) {
    std::vector<double> times;
    for (int i = 0; i < kMatchesPerRound; ++i) {
      const auto& units = prompts_[rng_() % prompts_.size()];
      const auto begin = std::chrono::steady_clock::now();
      const auto match = Match(units, all);
      const auto end = std::chrono::steady_clock::now();
      if (!match.ok() || !match->lease) std::abort();
      Release(*match->lease);
      times.push_back(std::chrono::duration<double, std::milli>(end - begin).count());
    }
    std::sort(times.begin(), times.end());
    return times;
  }

  uint64_t blocks() const { return ns_->blocks.load(); }

 private:
  void StoreTail(const std::vector<BlockKey>& units, uint32_t end) {
    for (uint32_t b = end - kWindow; b < end; ++b) Insert(units, kWindowed, b, false);
    Insert(units, kState, end - 1, false);
  }
  // Tails overlap at the end of a prompt.
  void Insert(const std::vector<BlockKey>& units, PoolNumber pool, uint32_t block, bool follows) {
    std::optional<BlockKey> parent;
    if (follows) parent = PoolKey(units[block - 1], pool);
    NamespaceLock lock(*ns_, context_.tiers);
    ns_->index.Insert(PoolKey(units[block], pool), parent,
                      {PartPlace{ns_->grid.WholeOf(pool), {{4096, 0, 0}}, {{1, 0, 0}}}},
                      TierKind::kHost, 0, 1);
  }
  Result<MatchResult> Match(const std::vector<BlockKey>& units, bool all) {
    return reads_.Match({.session = session_,
                         .fingerprint = ns_->fingerprint,
                         .keys = units,
                         .trace = "",
                         .joint = {.pools = {{.pool = kFull},
                                             {.pool = kDraft, .proof_blocks = 1},
                                             {.pool = kWindowed, .tail_tokens = 1023},
                                             {.pool = kState, .tail_tokens = 1}},
                                   .all = all}});
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
  static std::unique_ptr<HostTier> MakeHost() {
    HostTierOptions options;
    options.capacity_bytes = 1 << 20;
    options.prefault = false;
    options.check_memory = false;
    return std::move(HostTier::Create(options)).value();
  }

  std::mt19937_64 rng_{1};
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
};

int Main(bool json) {
  Bench bench;
  bench.Build();
  if (!bench.Verify()) {
    std::fprintf(stderr, "joint_match_bench: wrong result\n");
    return 1;
  }
  std::string out;
  for (const auto& [name, all] : {std::pair("longest", false), std::pair("all", true)}) {
    std::vector<double> times, medians;
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<double> some = bench.Round(all);
      medians.push_back(some[some.size() / 2]);
      times.insert(times.end(), some.begin(), some.end());
    }
    std::sort(times.begin(), times.end());
    const double p50 = times[times.size() / 2], p99 = times[times.size() * 99 / 100];
    if (json) {
      out += fmt::format(
          "\"{}\": {{\"p50_ms\": {:.4f}, \"p99_ms\": {:.4f}, \"p50_ms_samples\": [{:.4f}]}}, ",
          name, p50, p99, fmt::join(medians, ", "));
    } else {
      fmt::print("joint_match_150k/{:<8} p50 {:.3f} ms  p99 {:.3f} ms  ({} matches)\n", name, p50,
                 p99, times.size());
    }
  }
  if (json) fmt::print("{{{}\"blocks\": {}}}\n", out, bench.blocks());
  return 0;
}

}  // namespace
}  // namespace cairn::cache

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  if (argc > (json ? 2 : 1)) {
    std::fprintf(stderr, "usage: joint_match_bench [--json]\n");
    return 2;
  }
  return cairn::cache::Main(json);
}
