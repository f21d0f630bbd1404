#pragma once
// A small KV layout with a namespace, and blocks of known bytes.

#include <cstring>
#include <memory>
#include <vector>

#include "cairn/client/testing/in_memory_cache_client.h"
#include "common/status/matchers.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/kv_codec.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {

using client::testing::Faults;

// One fault: Fault(&Faults::hang, true).
template <typename Member, typename Value>
Faults Fault(Member Faults::*member, const Value& value) {
  Faults faults;
  faults.*member = value;
  return faults;
}

class SessionFixture : public ::testing::Test {
 protected:
  static constexpr KvLayout kKv{.layers = 4, .kv_heads = 3, .head_dim = 8, .block_tokens = 16};

  SessionFixture() {
    auto pool = KvPool::Create(kKv, 64 * kKv.page_bytes());
    CAIRN_CHECK(pool.ok());
    pool_ = *std::move(pool);
    NamespaceInputs inputs;
    inputs.model = "toy";
    inputs.kv = kKv;
    inputs.numerics = "toy-1";
    auto ns = WorkerNamespace(inputs);
    CAIRN_CHECK(ns.ok());
    ns_ = *std::move(ns);
    auto codec = KvCodec::Create(ns_, kKv);
    CAIRN_CHECK(codec.ok());
    codec_ = *std::move(codec);
  }

  static std::vector<int32_t> Tokens(size_t count) {
    std::vector<int32_t> tokens(count);
    for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(i * 7 % 101);
    return tokens;
  }

  // A sequence whose first `blocks` pages hold bytes that only they have.
  std::shared_ptr<KvSequence> Filled(int64_t blocks) {
    auto sequence = std::make_shared<KvSequence>(pool_->NewSequence());
    CAIRN_CHECK(sequence->Reserve(blocks * kKv.block_tokens).ok());
    for (int64_t b = 0; b < blocks; ++b) {
      for (int layer = 0; layer < kKv.layers; ++layer) {
        std::span<std::byte> slice = sequence->LayerSlice(b, layer);
        for (size_t i = 0; i < slice.size(); ++i) {
          slice[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(b * 5 + layer * 3));
        }
      }
    }
    sequence->SetLength(blocks * kKv.block_tokens);
    return sequence;
  }

  static std::span<const std::byte> Page(const KvSequence& sequence, int64_t block) {
    return {sequence.LayerSlice(block, 0).data(), kKv.page_bytes()};
  }
  static bool SamePage(const KvSequence& a, const KvSequence& b, int64_t block) {
    return std::memcmp(Page(a, block).data(), Page(b, block).data(), kKv.page_bytes()) == 0;
  }

  std::vector<ComputedBlock> Blocks(const std::shared_ptr<KvSequence>& sequence,
                                    std::span<const BlockKey> keys) {
    std::vector<ComputedBlock> blocks;
    for (size_t b = 0; b < keys.size(); ++b) {
      ComputedBlock block;
      block.key = keys[b];
      if (b > 0) block.parent = keys[b - 1];
      block.page = Page(*sequence, static_cast<int64_t>(b));
      block.hold = sequence;
      blocks.push_back(std::move(block));
    }
    return blocks;
  }

  // Stores `keys` at the node, as a worker would.
  std::shared_ptr<KvSequence> Store(std::span<const BlockKey> keys) {
    auto sequence = Filled(static_cast<int64_t>(keys.size()));
    PushQueue push(client_, spec_.layout, {});
    push.Enqueue(Fingerprint(spec_), *codec_, Blocks(sequence, keys));
    CAIRN_CHECK(push.WaitEmpty(SteadyClock::Get().Now() + std::chrono::seconds(20)));
    CAIRN_CHECK(push.GetStats().pushed_blocks == keys.size());
    return sequence;
  }

  std::unique_ptr<KvPool> pool_;
  CheckedNamespace ns_;
  const NamespaceSpec& spec_ = ns_.spec;
  std::unique_ptr<const KvCodec> codec_;
  client::testing::InMemoryCacheClient client_;
};

}  // namespace cairn::worker
