#pragma once
// An engine whose blocks have keys as vLLM's adapters use them, and what it holds.

#include <random>
#include <set>

#include "tests/unit/cache/serve/events/event_reader.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache {

// Blocks of 4,000 bytes and 32 tokens.
class OpaqueBlocksTest : public testing::EngineTest {
 protected:
  OpaqueBlocksTest() { spec_ = Spec("model"); }

  static NamespaceSpec Spec(const std::string& model, const std::string& tenant = "default",
                            const std::string& scheme = "vllm-sha256-00") {
    NamespaceSpec spec;
    spec.tenant = tenant;
    spec.model = model;
    spec.revision = "1";
    spec.numerics = "n";
    spec.key_scheme = scheme;
    spec.layout.block_tokens = 32;
    spec.layout.form = OpaqueLayout{.description = "pages", .max_part_bytes = 4000, .parts = 1};
    return spec;
  }
  Fingerprint OpenAlso(const NamespaceSpec& spec) {
    const auto opened = engine_->OpenNamespace(spec, false);
    EXPECT_OK(opened);
    return opened.ok() ? opened->fingerprint : Fingerprint();
  }
  // In pool 0.
  Status StoreIn(const Fingerprint& ns, uint64_t n) {
    const format::PartRect rect{0, 1, 0, 1};
    const std::vector<uint64_t> lengths = {4000};
    std::vector<std::byte> bytes(format::PartBytes(lengths), static_cast<std::byte>(n));
    format::SealPart(bytes, format::Codec::kOpaque, rect, 32, lengths);
    ReservePartRequest part;
    part.key = testing::TestKey(n);
    part.part = rect;
    part.bytes = bytes.size();
    CAIRN_ASSIGN_OR_RETURN(auto ids, engine_->Reserve(session_, ns, {&part, 1}, Duration(0)));
    CAIRN_RETURN_IF_ERROR(ids[0].status());
    CAIRN_RETURN_IF_ERROR(engine_->Write(session_, *ids[0], 0, bytes));
    return CommitOne(*ids[0]);
  }
  void StoreAll(const Fingerprint& ns, uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) {
      // Of one tick, blocks leave in no order.
      clock_.Advance(std::chrono::milliseconds(1));
      ASSERT_OK(StoreIn(ns, n)) << n;
    }
  }

  static uint64_t Bits(const BlockKey& key) {
    uint64_t bits = 0;
    for (size_t i = 24; i < 32; ++i) bits = bits << 8 | key.bytes[i];
    return bits;
  }
  // The blocks of the tenant `default` that the engine holds, as a reader should know them.
  std::set<EventReader::Block> Held(const std::string& topic_of = "kv@n@") {
    std::set<EventReader::Block> held;
    auto queue = engine_->Watch({.snapshot = true});
    EXPECT_OK(queue);
    for (;;) {
      const auto events = (*queue)->Next(1024, TimePoint());
      EXPECT_OK(events);
      for (const CacheEvent& event : *events) {
        if (event.kind == CacheEvent::Kind::kSnapshotEnd) return held;
        const auto spec = engine_->GetNamespace(event.fingerprint);
        if (!spec.ok() || (*spec)->tenant != "default") continue;
        if (!(*spec)->key_scheme.starts_with("vllm-")) continue;
        const uint64_t bits = Bits(PoolKey(event.key, event.pool));
        held.insert({topic_of + (*spec)->model, bits, event.tier, event.pool});
      }
    }
  }
};

}  // namespace cairn::cache
