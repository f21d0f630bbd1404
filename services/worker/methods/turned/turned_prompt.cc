#include "services/worker/methods/turned/turned_prompt.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/kernels/stream.h"
#include "common/log/log.h"
#include "model/tokenizer.h"
#include "services/worker/session/background_task.h"

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

struct TurnedBlocks {
  // The keys of all full blocks of the shortened prompt. Empty: nothing was turned, and they are
  // those of any prompt of these tokens.
  std::vector<BlockKey> keys;
  uint32_t blocks = 0;  // The number of first blocks that are at the node: sinks and turned ones.
};

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

// Makes the turned blocks of one prompt. On any thread.
class BlockTurner {
 public:
  // All must outlive it. `stop` ends it early.
  BlockTurner(const TurnServices& services, PushTurn& turn, const PromptTask& task,
              std::stop_token stop)
      : services_(services),
        turn_(turn),
        whole_(task.whole),
        trace_(task.request.trace),
        block_tokens_(static_cast<uint32_t>(services.kv.block_tokens)),
        dropped_(task.dropped),
        dropped_blocks_(static_cast<uint32_t>(task.dropped / block_tokens_)),
        stop_(std::move(stop)) {}

  // Sees to it that the node has the turned blocks of the whole prompt, of which the first block
  // and what stands behind the dropped tokens is kept. A node that does not do its part costs
  // deadlines and turned blocks.
  TurnedBlocks Run();

 private:
  static constexpr uint32_t kSinks = 1;  // Blocks.

  // Brings blocks [begin, end) of the whole prompt, turns them and pushes them under `keys`, which
  // are those of the shortened prompt. How many blocks of that the node has then.
  uint32_t TurnMissing(const client::Lease& lease, uint32_t begin, uint32_t end,
                       std::span<const BlockKey> keys);
  // False: the node has not all of them.
  bool Push(std::vector<ComputedBlock> blocks);

  const TurnServices& services_;
  PushTurn& turn_;
  const std::span<const model::TokenId> whole_;
  const std::string& trace_;
  const uint32_t block_tokens_;
  const int64_t dropped_;
  const uint32_t dropped_blocks_;
  const std::stop_token stop_;
};

bool BlockTurner::Push(std::vector<ComputedBlock> blocks) {
  turn_.Take(services_.clock);
  const bool taken = PushAndWait(services_.push, services_.session.fingerprint(), services_.codec,
                                 std::move(blocks), [this] { return stop_.stop_requested(); });
  turn_.GiveBack();
  return taken;
}

uint32_t BlockTurner::TurnMissing(const client::Lease& lease, uint32_t begin, uint32_t end,
                                  std::span<const BlockKey> keys) {
  const KvLayout& kv = services_.kv;
  Turner turner(services_, dropped_);
  std::vector<std::byte> pages(kBatch * kv.page_bytes());
  client::FetchOptions options;
  options.progress = services_.progress;
  options.deadline = services_.deadline;
  options.cancel = stop_;
  options.trace = trace_;
  for (uint32_t from = begin; from < end; from += kBatch) {
    const uint32_t count = std::min(kBatch, end - from);
    BlockSink sink(kv, from, count, std::span(pages).first(count * kv.page_bytes()));
    const Status status = services_.client.Fetch(
        lease, {.block_begin = from, .block_end = from + count}, sink, options);
    if (!status.ok() || !sink.complete()) return from - dropped_blocks_;
    std::vector<ComputedBlock> blocks;
    for (uint32_t i = 0; i < count; ++i) {
      std::byte* const page = pages.data() + i * kv.page_bytes();
      turner.Turn(page);
      const uint32_t to = from + i - dropped_blocks_;
      ComputedBlock block;
      block.key = keys[to];
      block.parent = keys[to - 1];
      block.first_position = uint64_t{to} * block_tokens_;
      block.page = {page, kv.page_bytes()};
      block.trace = trace_;
      blocks.push_back(std::move(block));
    }
    if (!Push(std::move(blocks))) return from - dropped_blocks_;
  }
  return end - dropped_blocks_;
}

TurnedBlocks BlockTurner::Run() {
  const Digest& fingerprint = services_.session.fingerprint();
  const std::vector<BlockKey> own = services_.session.Keys(whole_);
  // The last token is always computed.
  const size_t most = std::min(own.size(), (whole_.size() - 1) / block_tokens_);
  client::MatchOptions ask;
  ask.deadline = services_.match_deadline;
  ask.trace = trace_;
  const auto match = services_.client.Match(fingerprint, std::span(own).first(most), ask);
  if (!match.ok() || match->matched_blocks <= kSinks + dropped_blocks_) return {};

  TurnedBlocks turned;
  turned.keys.assign(own.begin(), own.begin() + kSinks);
  for (uint32_t block = kSinks + dropped_blocks_; block < match->matched_blocks; ++block) {
    turned.keys.push_back(TurnedKey(own[block], dropped_));
  }
  if (stop_.stop_requested()) return {};
  const auto there = services_.client.Exists(
      fingerprint, turned.keys, {.deadline = services_.match_deadline, .trace = trace_});
  if (!there.ok()) return {};
  const auto missing =
      std::ranges::find_if(*there, [](const auto& tier) { return !tier; }) - there->begin();
  turned.blocks = static_cast<uint32_t>(turned.keys.size());
  if (missing < std::ssize(turned.keys)) {
    turned.blocks = TurnMissing(match->lease,
                                std::max(kSinks, static_cast<uint32_t>(missing)) + dropped_blocks_,
                                match->matched_blocks, turned.keys);
  }
  if (turned.blocks <= kSinks) return {};
  // The blocks that are computed over them.
  turned.keys.resize(turned.blocks);
  BlockKeyChain chain(fingerprint);
  const std::span<const model::TokenId> rest = whole_.subspan(static_cast<size_t>(dropped_));
  for (size_t at = size_t{turned.blocks} * block_tokens_; at + block_tokens_ <= rest.size();
       at += block_tokens_) {
    turned.keys.push_back(chain.Next(turned.keys.back(), rest.subspan(at, block_tokens_)));
  }
  log::Info("prompt_turned_back", {{"dropped_tokens", log::Num(static_cast<uint64_t>(dropped_))},
                                   {"turned_blocks", log::Num(uint64_t{turned.blocks} - kSinks)},
                                   {"trace", trace_}});
  return turned;
}

}  // namespace

// The work in the background.
struct TurnedPrompt::Turning {
  std::stop_source stop;
  TurnedBlocks turned;  // The task's, until it is done.
  std::optional<BackgroundTask> task;
};

TurnedPrompt::TurnedPrompt(const TurnServices& services, PushTurn& turn, PromptTask task)
    : services_(services), turn_(turn), task_(std::move(task)) {}

TurnedPrompt::~TurnedPrompt() {
  if (turning_ != nullptr) turning_->stop.request_stop();
}

Step TurnedPrompt::Next(int64_t max_rows, bool alone) {
  if (way_ != nullptr) return way_->Next(max_rows, alone);
  if (turning_ == nullptr) {
    turning_ = std::make_unique<Turning>();
    turning_->task.emplace(
        services_.executor, services_.clock, services_.wakeup, [this, &turning = *turning_] {
          turning.turned = BlockTurner(services_, turn_, task_, turning.stop.get_token()).Run();
        });
  }
  if (task_.request.stop && task_.request.stop()) turning_->stop.request_stop();
  if (!turning_->task->done()) return {Step::Kind::kWaiting};
  TurnedBlocks turned = std::move(turning_->turned);
  turning_.reset();
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
