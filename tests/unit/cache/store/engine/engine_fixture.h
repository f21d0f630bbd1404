#pragma once
// A whole engine on a small host arena and a fake disk, and blocks whose bytes say who they are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "common/status/matchers.h"
#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/state/memory_account.h"
#include "services/cache/store/tier/host_tier.h"
#include "services/cache/store/tier/testing/fake_tier.h"

namespace cairn::cache::testing {

using ::cairn::testing::StatusIs;

inline constexpr uint32_t kLayers = 4;
inline constexpr uint32_t kHeads = 2;

inline NamespaceSpec TestSpec(std::string model = "model") {
  NamespaceSpec spec;
  spec.model = std::move(model);
  spec.revision = "1";
  spec.numerics = "f32";
  spec.layout.block_tokens = 16;
  // 4 layers x 2 heads x 16 tokens x 32 numbers x 2 bytes x (k, v) = 4 KiB a layer and 16 KiB a
  // block.
  spec.layout.form = NativeLayout{
      .groups = {{.count = kLayers,
                  .planes = {{"k", kHeads, 32, DType::kF16}, {"v", kHeads, 32, DType::kF16}}}},
      .kv_heads = kHeads};
  return spec;
}

inline BlockKey TestKey(uint64_t n) {
  uint64_t words[4] = {n * 0x9e3779b97f4a7c15ull + 1, n, ~n, n ^ 0x55};
  BlockKey key;
  std::memcpy(key.bytes.data(), words, sizeof(words));
  return key;
}

inline std::vector<BlockKey> TestKeys(uint64_t first, uint64_t last) {
  std::vector<BlockKey> keys;
  for (uint64_t n = first; n <= last; ++n) keys.push_back(TestKey(n));
  return keys;
}

// The sealed bytes of a part of block n: every slice is filled with a pattern of (n, layer, head).
inline std::vector<std::byte> TestPart(const Layout& layout, uint64_t n,
                                       const format::PartRect& rect) {
  std::vector<uint64_t> lengths;
  for (uint32_t l = rect.layer_begin; l < rect.layer_end; ++l) {
    lengths.push_back(layout.SliceBytes(l, rect.head_begin, rect.head_end));
  }
  std::vector<std::byte> part(format::PartBytes(lengths));
  size_t at = format::HeaderBytes(static_cast<uint32_t>(lengths.size()));
  for (size_t l = 0; l < lengths.size(); ++l) {
    for (uint64_t i = 0; i < lengths[l]; ++i) {
      part[at + i] =
          static_cast<std::byte>(n * 7 + (rect.layer_begin + l) * 3 + rect.head_begin + i);
    }
    at += lengths[l];
  }
  format::SealPart(part, format::Codec::kRaw, rect, static_cast<uint16_t>(layout.block_tokens),
                   lengths);
  return part;
}

// Whether the slice is that of a part of block n.
inline bool IsSliceOf(uint64_t n, const FetchedSlice& slice) {
  for (size_t i = 0; i < slice.data.size(); ++i) {
    const auto expected =
        static_cast<std::byte>(n * 7 + slice.layer * 3 + slice.part.head_begin + i);
    if (slice.data[i] != expected) return false;
  }
  return !slice.data.empty();
}

struct Fetched {
  std::vector<FetchedSlice> slices;
  std::map<uint32_t, MissReason> failures;
  std::vector<std::pair<uint32_t, uint32_t>> order;  // (layer, block)
};

// CAIRN_TEST_DEVICE_BYTES puts a fake device tier above host in every test that does not choose
// for itself: the whole suite then runs with three tiers.
inline uint64_t DeviceBytesOfThisRun() {
  const char* const bytes = std::getenv("CAIRN_TEST_DEVICE_BYTES");
  return bytes == nullptr ? 0 : std::strtoull(bytes, nullptr, 10);
}

struct EngineTestOptions {
  uint64_t host_bytes = 4 << 20;
  uint64_t segment_bytes = 0;  // The size of the host tier's segments. 0: it chooses.
  uint64_t disk_bytes = 64 << 20;
  bool disk = true;
  uint64_t device_bytes = DeviceBytesOfThisRun();  // 0: no device tier.
  // Makes a device tier in place of the fake one. It outlives the engine.
  std::function<Tier*(HostTier* host)> make_device = nullptr;
  BlockSource* source = nullptr;
  Timers* timers = nullptr;
  std::optional<MemoryAccount::Bounds> memory = std::nullopt;  // The bounds of `account_`.
  std::function<std::array<uint8_t, 16>()> new_bump_id = nullptr;
  EngineOptions engine = {};
};

// In a tier: a block of the fixture needs a little less.
constexpr uint64_t kBlockRoom = 17 << 10;

class EngineTest : public ::testing::Test {
 protected:
  using Options = EngineTestOptions;

  // A node's tiers and engine. The engine's error, if it does not start.
  Status Create(const Options& options) {
    HostTierOptions host;
    host.capacity_bytes = options.host_bytes;
    host.segment_bytes = options.segment_bytes;
    host.prefault = false;
    host.check_memory = false;
    CAIRN_ASSIGN_OR_RETURN(host_, HostTier::Create(host));
    if (options.disk && disk_ == nullptr) {
      disk_ = std::make_unique<FakeTier>(FakeTier::Options{.capacity_bytes = options.disk_bytes});
    }
    Tiers tiers(host_.get());
    if (options.disk) tiers.Add(disk_.get());
    // It does not outlive the process, so each start has a new one.
    device_.reset();
    if (options.make_device != nullptr) {
      tiers.Add(options.make_device(host_.get()));
    } else if (options.device_bytes > 0) {
      device_ = std::make_unique<FakeTier>(
          FakeTier::Options{.kind = TierKind::kDevice, .capacity_bytes = options.device_bytes});
      tiers.Add(static_cast<Tier*>(device_.get()));
    }
    if (options.memory) memory_ = &account_.emplace(*options.memory);
    CAIRN_ASSIGN_OR_RETURN(
        engine_, CacheEngine::Create(options.engine, {.tiers = tiers,
                                                      .clock = &clock_,
                                                      .executor = executor_,
                                                      .node_id = "node",
                                                      .node_epoch = 1,
                                                      .source = options.source,
                                                      .timers = options.timers,
                                                      .memory = memory_,
                                                      .new_bump_id = options.new_bump_id}));
    return OkStatus();
  }

  void Start(Options options = {}) {
    options_ = options;
    ASSERT_OK(Create(options));
    auto session = engine_->OpenSession("test");
    ASSERT_OK(session);
    session_ = *session;
    auto opened = engine_->OpenNamespace(spec_, false);
    ASSERT_OK(opened);
    ns_ = opened->fingerprint;
  }

  // For tests that look at what lies in host, or in the tiers of a node without a device.
  void StartWithoutDevice(Options options = {}) {
    options.device_bytes = 0;
    Start(options);
  }

  // As after kill -9: what was not flushed is lost.
  void CrashAndRestart() {
    engine_.reset();
    host_.reset();
    disk_->Crash();
    Start(options_);
  }

  void TearDown() override {
    if (engine_ == nullptr) return;
    engine_->CloseSession(session_);
    const EngineStats stats = engine_->GetStats();
    EXPECT_EQ(stats.leases, 0u);
    EXPECT_EQ(stats.reservations, 0u);
    EXPECT_EQ(stats.reserved_bytes, 0u);
    engine_.reset();
  }

  format::PartRect Whole() const { return spec_.layout.WholeRect(); }
  ReservePartRequest Part(uint64_t n, std::optional<uint64_t> parent,
                          std::optional<format::PartRect> rect = {}) const {
    ReservePartRequest part;
    part.key = TestKey(n);
    if (parent) part.parent = TestKey(*parent);
    part.part = rect.value_or(Whole());
    part.bytes = TestPart(spec_.layout, n, part.part).size();
    return part;
  }
  Result<ReservationId> Reserve(const ReservePartRequest& part,
                                std::optional<SessionId> session = {}) {
    auto results = engine_->Reserve(session.value_or(session_), ns_, {&part, 1}, Duration(0));
    if (!results.ok()) return results.status();
    return (*results)[0];
  }
  Status CommitOne(ReservationId id) {
    auto results = engine_->Commit(session_, {&id, 1}, "trace");
    return results.ok() ? (*results)[0] : results.status();
  }
  Status Store(uint64_t n, std::optional<uint64_t> parent,
               std::optional<format::PartRect> rect = {}) {
    const ReservePartRequest part = Part(n, parent, rect);
    const auto id = Reserve(part);
    if (!id.ok()) return id.status();
    CAIRN_RETURN_IF_ERROR(engine_->Write(session_, *id, 0, TestPart(spec_.layout, n, part.part)));
    return CommitOne(*id);
  }
  void StoreChain(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) {
      ASSERT_OK(Store(n, n == first ? std::nullopt : std::optional(n - 1))) << n;
    }
  }
  // Blocks without parents: none lies behind another.
  void StoreAlone(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) ASSERT_OK(Store(n, std::nullopt)) << n;
  }
  uint64_t BlocksIn(TierKind tier) { return engine_->GetStats().tiers[tier]->blocks; }
  MatchResult Match(const std::vector<BlockKey>& keys, bool lease = true) {
    MatchRequest request;
    request.session = session_;
    request.fingerprint = ns_;
    request.keys = keys;
    request.lease = lease;
    auto result = engine_->Match(request);
    EXPECT_OK(result);
    return result.ok() ? *result : MatchResult{};
  }
  Fetched Drain(FetchStream& stream) {
    Fetched fetched;
    for (;;) {
      auto item = stream.Next(clock_.Now() + std::chrono::seconds(10));
      EXPECT_OK(item);
      if (!item.ok() || !item->has_value()) return fetched;
      if (auto* failure = std::get_if<FetchFailure>(&**item)) {
        EXPECT_FALSE(fetched.failures.contains(failure->block)) << failure->block;
        fetched.failures[failure->block] = failure->reason;
        continue;
      }
      FetchedSlice slice = std::get<FetchedSlice>(**item);
      EXPECT_EQ(Xxh3(slice.data), slice.xxh3);
      fetched.order.emplace_back(slice.layer, slice.block);
      if (!keep_holds_) slice.hold.reset();
      fetched.slices.push_back(std::move(slice));
      if (on_slice_) on_slice_(fetched.slices.back());
    }
  }
  Fetched Fetch(LeaseId lease) {
    FetchRequest request;
    request.session = session_;
    request.lease = lease;
    auto stream = engine_->Fetch(request);
    EXPECT_OK(stream);
    return stream.ok() ? Drain(**stream) : Fetched{};
  }
  // Matches, fetches, verifies every byte and releases: how many blocks came whole.
  uint32_t ServeAndVerify(uint64_t first, uint64_t last) {
    const MatchResult match = Match(TestKeys(first, last));
    if (!match.lease) return 0;
    std::map<uint32_t, uint32_t> cells;
    on_slice_ = [&](const FetchedSlice& slice) {
      EXPECT_TRUE(IsSliceOf(first + slice.block, slice))
          << "block " << slice.block << " layer " << slice.layer;
      cells[slice.block] += slice.part.head_end - slice.part.head_begin;
    };
    const Fetched fetched = Fetch(*match.lease);
    on_slice_ = nullptr;
    EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
    uint32_t whole = 0;
    for (const auto& [block, count] : cells) {
      if (fetched.failures.contains(block)) continue;
      EXPECT_EQ(count, kLayers * kHeads) << block;
      ++whole;
    }
    EXPECT_EQ(whole + fetched.failures.size(), match.matched_blocks);
    return whole;
  }
  void Flush() { ASSERT_OK(engine_->Flush(clock_.Now() + std::chrono::seconds(10))); }

  FakeClock clock_;
  InlineExecutor inline_;
  Executor* executor_ = &inline_;
  std::optional<MemoryAccount> account_;  // Charges go back to it until the engine is gone.
  MemoryAccount* memory_ = nullptr;       // Nothing is bounded.
  NamespaceSpec spec_ = TestSpec();
  Options options_;
  std::unique_ptr<HostTier> host_;
  std::unique_ptr<FakeTier> disk_;
  std::unique_ptr<FakeTier> device_;  // nullptr: none.
  std::unique_ptr<CacheEngine> engine_;
  SessionId session_ = 0;
  Fingerprint ns_;
  bool keep_holds_ = false;
  std::function<void(const FetchedSlice&)> on_slice_;
};

}  // namespace cairn::cache::testing
