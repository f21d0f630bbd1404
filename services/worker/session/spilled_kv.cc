#include "services/worker/session/spilled_kv.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

// A window's slices, and where they come from.
struct SpilledKv::Slot {
  enum class State : uint8_t { kIdle, kQueued, kRunning, kDone };

  // Written by whoever fills it, read by others once it is done.
  Range range;
  std::unique_ptr<std::byte[]> staging;  // As large as a whole window; made when it is needed.
  std::vector<const std::byte*> slices;
  std::vector<std::shared_ptr<const client::LentHold>> holds;
  BytesByTier bytes;
  Status status;
  std::stop_source stop;

  Mutex mu;
  CondVar changed;
  State state ABSL_GUARDED_BY(mu) = State::kIdle;

  // Whoever gets true fills it.
  bool Begin() {
    MutexLock lock(mu);
    if (state != State::kQueued) return false;
    state = State::kRunning;
    return true;
  }
  void Done() {
    MutexLock lock(mu);
    state = State::kDone;
    changed.NotifyAll();
  }
  State GetState() {
    MutexLock lock(mu);
    return state;
  }
  // A fetch has deadlines of its own. Waits on the clock, as all cores do.
  void WaitDone(const Clock& clock) {
    MutexLock lock(mu);
    changed.Wait(mu, clock,
                 [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return state == State::kDone; });
  }
  // False: memory of the node that it was read from is no longer the node's promise.
  bool Pinned() const {
    return std::ranges::all_of(holds, [](const auto& hold) { return hold->Pinned(); });
  }
};

namespace {

// Takes the slices of one layer of a run of blocks.
class WindowSink final : public client::FetchSink {
 public:
  struct Into {
    std::byte* staging;
    std::vector<const std::byte*>* slices;
    std::vector<std::shared_ptr<const client::LentHold>>* holds;
    BytesByTier* bytes;
  };
  WindowSink(const KvLayout& kv, int layer, uint32_t first_block, bool lend, const Into& into)
      : kv_(kv),
        layer_(static_cast<uint32_t>(layer)),
        first_(first_block),
        lend_(lend),
        into_(into) {}

  std::span<std::byte> Destination(const client::SliceInfo& slice) override {
    if (!Fits(slice)) return {};
    return {into_.staging + (slice.block - first_) * kv_.layer_bytes(), kv_.layer_bytes()};
  }
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    if (!Fits(slice)) return Wrong(slice);
    return Take(slice, data);
  }
  bool WantsLent() const override { return lend_; }
  Status OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const client::LentHold> hold) override {
    if (!Fits(slice)) return Wrong(slice);
    if (into_.holds->empty() || into_.holds->back() != hold) into_.holds->push_back(hold);
    into_.bytes->lent += data.size();
    return Take(slice, data);
  }
  void OnBlockFailed(uint32_t block, MissReason reason) override {
    if (!failed_.ok()) return;
    failed_ = Errorf(StatusCode::kDataLoss, "block {} of the prompt: {}", block, Name(reason));
  }
  // Not OK: a block did not come.
  const Status& failed() const { return failed_; }

 private:
  bool Fits(const client::SliceInfo& slice) const {
    const auto heads = static_cast<uint32_t>(kv_.kv_heads);
    return slice.layer == layer_ && slice.block >= first_ &&
           slice.block - first_ < into_.slices->size() && slice.codec == format::Codec::kRaw &&
           slice.part.head_begin == 0 && slice.part.head_end == heads &&
           slice.slice_bytes == kv_.layer_bytes();
  }
  Status Wrong(const client::SliceInfo& slice) const {
    return Errorf(
        StatusCode::kDataLoss,
        "block {}: slice of layer {} with heads [{}, {}) and {} bytes, expected layer {}, "
        "all {} heads, {} bytes",
        slice.block, slice.layer, slice.part.head_begin, slice.part.head_end, slice.slice_bytes,
        layer_, kv_.kv_heads, kv_.layer_bytes());
  }
  Status Take(const client::SliceInfo& slice, std::span<const std::byte> data) {
    (*into_.slices)[slice.block - first_] = data.data();
    into_.bytes->Of(slice.tier) += data.size();
    return OkStatus();
  }

  const KvLayout& kv_;
  const uint32_t layer_;
  const uint32_t first_;
  const bool lend_;
  const Into into_;
  Status failed_;
};

}  // namespace

SpilledKv::SpilledKv(const Dependencies& dependencies, const Digest& fingerprint,
                     const KvLayout& kv, const Options& options, std::string trace)
    : dependencies_(dependencies),
      fingerprint_(fingerprint),
      kv_(kv),
      options_(options),
      trace_(std::move(trace)) {
  CAIRN_CHECK(options.window_tokens > 0 && options.window_tokens % kUnitTokens == 0 &&
              kUnitTokens % kv.block_tokens == 0);
  for (auto& slot : slots_) slot = std::make_shared<Slot>();
}

SpilledKv::~SpilledKv() { DropAhead(); }

Status SpilledKv::Hold(std::span<const BlockKey> keys) {
  DropAhead();
  if (keys.empty()) {
    LetGo();
    tokens_ = 0;
    matched_blocks_ = 0;
    miss_reason_ = MissReason::kNone;
    return OkStatus();
  }
  // Before the match: two leases on the same blocks would count twice against a session's quota.
  lease_.Release();
  client::MatchOptions options;
  options.deadline = options_.match_deadline;
  options.lease_ttl = options_.lease_ttl;
  options.trace = trace_;
  CAIRN_ASSIGN_OR_RETURN(client::MatchOutcome outcome,
                         dependencies_.client.Match(fingerprint_, keys, options));
  lease_ = std::move(outcome.lease);
  matched_blocks_ = outcome.matched_blocks;
  miss_reason_ = matched_blocks_ < keys.size() ? outcome.miss_reason : MissReason::kNone;
  tokens_ = int64_t{matched_blocks_} * kv_.block_tokens / kUnitTokens * kUnitTokens;
  return OkStatus();
}

void SpilledKv::LetGo() {
  DropAhead();
  lease_.Release();
}

SpilledKv::Range SpilledKv::RangeAt(int layer, uint32_t block) const {
  const auto all = static_cast<uint32_t>(tokens_ / kv_.block_tokens);
  const auto most = static_cast<uint32_t>(options_.window_tokens / kv_.block_tokens);
  return {.layer = layer, .begin = block, .end = std::min(all, block + most)};
}

SpilledKv::Range SpilledKv::After(const Range& range) const {
  if (range.end < tokens_ / kv_.block_tokens) return RangeAt(range.layer, range.end);
  return RangeAt((range.layer + 1) % kv_.layers, 0);
}

void SpilledKv::Renew() {
  if (!lease_.held()) return;
  const TimePoint half = lease_.info().expires_at - options_.lease_ttl / 2;
  if (dependencies_.clock.Now() < half) return;
  // If the lease is over, the fetch says so.
  (void)dependencies_.client.RenewLease(lease_, options_.lease_ttl,
                                        {.deadline = options_.match_deadline, .trace = trace_});
}

Status SpilledKv::Begin(int layer) {
  if (layer == 0) Renew();
  layer_ = layer;
  next_block_ = 0;
  current_ = nullptr;
  return OkStatus();
}

Result<EarlierKv::Window> SpilledKv::Next() {
  CAIRN_RETURN_IF_ERROR(End());
  const Range range = RangeAt(layer_, next_block_);
  CAIRN_CHECK(range.begin < range.end);
  const TimePoint start = dependencies_.clock.Now();
  Slot& slot = Want(range);
  const bool late = slot.GetState() != Slot::State::kDone;
  if (slot.Begin()) {
    Fill(slot);
  } else {
    slot.WaitDone(dependencies_.clock);
  }
  ++stats_.windows;
  stats_.late_windows += late ? 1 : 0;
  stats_.wait_seconds += Seconds(dependencies_.clock.Now() - start);
  CAIRN_RETURN_IF_ERROR(slot.status);
  stats_.bytes += std::exchange(slot.bytes, {});
  current_ = &slot;
  next_block_ = range.end;
  FetchAhead(After(range));
  return Window{.tokens = int64_t{range.end - range.begin} * kv_.block_tokens,
                .slices = slot.slices};
}

Status SpilledKv::End() {
  if (current_ == nullptr || current_->Pinned()) return OkStatus();
  return Errorf(StatusCode::kUnavailable, "the cache node took memory back while it was read");
}

SpilledKv::Slot& SpilledKv::Want(const Range& range) {
  for (const auto& slot : slots_) {
    if (slot->GetState() != Slot::State::kIdle && slot->range == range) return *slot;
  }
  // Nothing that is under way is wanted now.
  DropAhead();
  Slot& slot = *slots_[0];
  slot.range = range;
  slot.stop = std::stop_source();
  MutexLock lock(slot.mu);
  slot.state = Slot::State::kQueued;
  return slot;
}

void SpilledKv::FetchAhead(const Range& range) {
  const auto other =
      std::ranges::find_if(slots_, [this](const auto& slot) { return slot.get() != current_; });
  Slot& slot = **other;
  if (slot.range == range && slot.GetState() != Slot::State::kIdle) return;
  CAIRN_CHECK(slot.GetState() == Slot::State::kIdle || slot.GetState() == Slot::State::kDone);
  slot.range = range;
  slot.stop = std::stop_source();
  {
    MutexLock lock(slot.mu);
    slot.state = Slot::State::kQueued;
  }
  // Refused: it is fetched when it is needed.
  (void)dependencies_.executor.Post([this, shared = *other] {
    if (shared->Begin()) Fill(*shared);
  });
}

void SpilledKv::Fill(Slot& slot) {
  const Range range = slot.range;
  if (!lease_.held()) {
    slot.status =
        Errorf(StatusCode::kNotFound, "the first {} tokens of the prompt are not leased", tokens_);
    return slot.Done();
  }
  slot.slices.assign(range.end - range.begin, nullptr);
  slot.holds.clear();
  slot.bytes = {};
  if (slot.staging == nullptr) {
    const auto blocks = static_cast<size_t>(options_.window_tokens / kv_.block_tokens);
    slot.staging = std::make_unique_for_overwrite<std::byte[]>(blocks * kv_.layer_bytes());
  }
  WindowSink sink(kv_, range.layer, range.begin, options_.lend,
                  {.staging = slot.staging.get(),
                   .slices = &slot.slices,
                   .holds = &slot.holds,
                   .bytes = &slot.bytes});
  client::FetchOptions options;
  options.progress = options_.progress;
  options.deadline = options_.deadline;
  options.cancel = slot.stop.get_token();
  options.trace = trace_;
  slot.status = dependencies_.client.Fetch(lease_,
                                           {.block_begin = range.begin,
                                            .block_end = range.end,
                                            .layer_begin = static_cast<uint32_t>(range.layer),
                                            .layer_end = static_cast<uint32_t>(range.layer) + 1},
                                           sink, options);
  if (slot.status.ok()) slot.status = sink.failed();
  if (slot.status.ok() && std::ranges::find(slot.slices, nullptr) != slot.slices.end()) {
    slot.status =
        Errorf(StatusCode::kDataLoss, "the cache node did not send all of layer {}", range.layer);
  }
  slot.Done();
}

void SpilledKv::DropAhead() {
  for (auto& slot : slots_) {
    slot->stop.request_stop();
    // A task that has not begun yet finds that there is nothing to do.
    const bool mine = slot->Begin();
    if (!mine && slot->GetState() == Slot::State::kRunning) slot->WaitDone(dependencies_.clock);
    slot->holds.clear();
    MutexLock lock(slot->mu);
    slot->state = Slot::State::kIdle;
  }
  current_ = nullptr;
}

}  // namespace cairn::worker
