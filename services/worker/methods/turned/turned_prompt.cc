#include "services/worker/methods/turned/turned_prompt.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cairn/common/hash.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/kernels/stream.h"
#include "common/log/log.h"

namespace cairn::worker {
namespace {

// Blocks that are brought and turned at a time.
constexpr uint32_t kBatch = 4;

BlockKey TurnedKey(const BlockKey& own, int64_t dropped) {
  return Sha256()
      .Update(fmt::format("turned back by {} tokens", dropped))
      .Update(own.View())
      .Finish();
}

// Takes whole blocks into pages, one behind the other.
class BlockSink final : public client::FetchSink {
 public:
  BlockSink(const KvLayout& kv, uint32_t first, uint32_t count, std::span<std::byte> pages)
      : kv_(kv), first_(first), pages_(pages), missing_(count * static_cast<uint32_t>(kv.layers)) {}

  std::span<std::byte> Destination(const client::SliceInfo& slice) override {
    const size_t at = (slice.block - first_) * kv_.page_bytes() + slice.layer * kv_.layer_bytes();
    const bool fits = slice.block >= first_ && slice.layer < static_cast<uint32_t>(kv_.layers) &&
                      slice.codec == format::Codec::kRaw && slice.part.head_begin == 0 &&
                      slice.part.head_end == static_cast<uint32_t>(kv_.kv_heads) &&
                      slice.slice_bytes == kv_.layer_bytes() &&
                      at + kv_.layer_bytes() <= pages_.size();
    return fits ? pages_.subspan(at, kv_.layer_bytes()) : std::span<std::byte>();
  }
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    if (data.data() != Destination(slice).data()) {
      return Errorf(StatusCode::kDataLoss, "block {}: a slice of layer {} that fits no page",
                    slice.block, slice.layer);
    }
    --missing_;
    return OkStatus();
  }
  void OnBlockFailed(uint32_t, MissReason) override { failed_ = true; }
  bool complete() const { return missing_ == 0 && !failed_; }

 private:
  const KvLayout& kv_;
  const uint32_t first_;
  const std::span<std::byte> pages_;
  uint32_t missing_;
  bool failed_ = false;
};

// Turns the keys of pages.
class Turner {
 public:
  Turner(const TurnServices& services, int64_t dropped)
      : services_(services), rows_(int64_t{services.kv.kv_heads} * services.kv.block_tokens) {
    const int64_t half = services.rope_dim / 2;
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t p = 0; p < half; ++p) {
        const double exponent = -2.0 * static_cast<double>(p) / services.rope_dim;
        const double angle = -static_cast<double>(dropped) *
                             std::pow(static_cast<double>(services.rope_base), exponent);
        cosine_.push_back(static_cast<float>(std::cos(angle)));
        sine_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  void Turn(std::byte* page) {
    for (int layer = 0; layer < services_.kv.layers; ++layer) {
      // All heads of K, one behind the other.
      std::byte* const keys = page + static_cast<size_t>(layer) * services_.kv.layer_bytes();
      services_.kernels.turn_rows(stream_, {.x = reinterpret_cast<uint16_t*>(keys),
                                            .rows = rows_,
                                            .head_dim = services_.kv.head_dim,
                                            .rope_dim = services_.rope_dim,
                                            .cosine = cosine_.data(),
                                            .sine = sine_.data()});
    }
  }

 private:
  const TurnServices& services_;
  const int64_t rows_;
  std::vector<float> cosine_, sine_;  // [rows][rope_dim / 2]
  kernels::InlineStream stream_;
};

// Brings blocks [begin, end) of the whole prompt, turns them and pushes them under `keys`, which
// are those of the shortened prompt. How many blocks of that the node has then.
uint32_t TurnMissing(const TurnServices& services, const client::Lease& lease, uint32_t begin,
                     uint32_t end, uint32_t dropped_blocks, std::span<const BlockKey> keys,
                     const std::string& trace) {
  const KvLayout& kv = services.kv;
  const auto block_tokens = static_cast<uint32_t>(kv.block_tokens);
  Turner turner(services, int64_t{dropped_blocks} * block_tokens);
  std::vector<std::byte> pages(kBatch * kv.page_bytes());
  client::FetchOptions options;
  options.progress = services.progress;
  options.deadline = services.deadline;
  options.trace = trace;
  for (uint32_t from = begin; from < end; from += kBatch) {
    const uint32_t count = std::min(kBatch, end - from);
    BlockSink sink(kv, from, count, std::span(pages).first(count * kv.page_bytes()));
    const Status status = services.client.Fetch(
        lease, {.block_begin = from, .block_end = from + count}, sink, options);
    if (!status.ok() || !sink.complete()) return from - dropped_blocks;
    std::vector<ComputedBlock> blocks;
    for (uint32_t i = 0; i < count; ++i) {
      std::byte* const page = pages.data() + i * kv.page_bytes();
      turner.Turn(page);
      const uint32_t to = from + i - dropped_blocks;
      ComputedBlock block;
      block.key = keys[to];
      block.parent = keys[to - 1];
      block.first_position = uint64_t{to} * block_tokens;
      block.page = {page, kv.page_bytes()};
      block.trace = trace;
      blocks.push_back(std::move(block));
    }
    const PushQueue::Stats before = services.push.GetStats();
    services.push.Enqueue(services.session.fingerprint(), services.codec, std::move(blocks));
    while (services.push.RunOnce()) {
    }
    const PushQueue::Stats after = services.push.GetStats();
    if (after.failed_blocks + after.dropped_blocks !=
        before.failed_blocks + before.dropped_blocks) {
      return from - dropped_blocks;
    }
  }
  return end - dropped_blocks;
}

}  // namespace

TurnedBlocks TurnBack(const TurnServices& services, std::span<const TokenId> whole, int64_t dropped,
                      const std::string& trace) {
  const auto block_tokens = static_cast<size_t>(services.kv.block_tokens);
  const auto dropped_blocks = static_cast<uint32_t>(static_cast<size_t>(dropped) / block_tokens);
  constexpr uint32_t kSinks = 1;  // Blocks.
  const Digest& fingerprint = services.session.fingerprint();
  const std::vector<BlockKey> own = services.session.Keys(whole);
  // The last token is always computed.
  const size_t most = std::min(own.size(), (whole.size() - 1) / block_tokens);
  client::MatchOptions ask;
  ask.deadline = services.match_deadline;
  ask.trace = trace;
  const auto match = services.client.Match(fingerprint, std::span(own).first(most), ask);
  if (!match.ok() || match->matched_blocks <= kSinks + dropped_blocks) return {};

  TurnedBlocks turned;
  turned.keys.assign(own.begin(), own.begin() + kSinks);
  for (uint32_t block = kSinks + dropped_blocks; block < match->matched_blocks; ++block) {
    turned.keys.push_back(TurnedKey(own[block], dropped));
  }
  const auto there = services.client.Exists(fingerprint, turned.keys,
                                            {.deadline = services.match_deadline, .trace = trace});
  if (!there.ok()) return {};
  const auto missing =
      std::ranges::find_if(*there, [](const auto& tier) { return !tier; }) - there->begin();
  turned.blocks = static_cast<uint32_t>(turned.keys.size());
  if (missing < std::ssize(turned.keys)) {
    turned.blocks = TurnMissing(services, match->lease,
                                std::max(kSinks, static_cast<uint32_t>(missing)) + dropped_blocks,
                                match->matched_blocks, dropped_blocks, turned.keys, trace);
  }
  if (turned.blocks <= kSinks) return {};
  // The blocks that are computed over them.
  turned.keys.resize(turned.blocks);
  BlockKeyChain chain(fingerprint);
  const std::span<const TokenId> rest = whole.subspan(static_cast<size_t>(dropped));
  for (size_t at = turned.blocks * block_tokens; at + block_tokens <= rest.size();
       at += block_tokens) {
    turned.keys.push_back(chain.Next(turned.keys.back(), rest.subspan(at, block_tokens)));
  }
  log::Info("prompt_turned_back", {{"dropped_tokens", log::Num(static_cast<uint64_t>(dropped))},
                                   {"turned_blocks", log::Num(uint64_t{turned.blocks} - kSinks)},
                                   {"trace", trace}});
  return turned;
}

Step TurnedPrompt::Next(int64_t max_rows, bool alone) {
  if (way_ != nullptr) return way_->Next(max_rows, alone);
  TurnedBlocks turned = TurnBack(services_, task_.whole, task_.dropped, task_.request.trace);
  turned_blocks_ = turned.blocks;
  task_.request.keys = std::move(turned.keys);
  task_.request.turned_blocks = turned.blocks;
  way_ = task_.usual(std::move(task_.request));
  return {Step::Kind::kWorked};
}

PromptReport TurnedPrompt::TakeReport() {
  PromptReport report = way_->TakeReport();
  report.turned_blocks = turned_blocks_;
  return report;
}

}  // namespace cairn::worker
