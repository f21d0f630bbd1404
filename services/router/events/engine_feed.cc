#include "services/router/events/engine_feed.h"

#include <span>
#include <utility>

#include "cairn/common/hash.h"
#include "services/router/events/batch_decoder.h"

namespace cairn::router {
namespace {

uint64_t HashOf(std::string_view bytes) {
  return Xxh3(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

}  // namespace

EngineFeed::Numbers& EngineFeed::Numbers::operator+=(const Numbers& other) {
  live_batches += other.live_batches;
  replayed_batches += other.replayed_batches;
  replays += other.replays;
  failed_replays += other.failed_replays;
  gaps += other.gaps;
  restarts += other.restarts;
  forgotten += other.forgotten;
  junk += other.junk;
  return *this;
}

void EngineFeed::Connected() {
  connected_ = true;
  unsure_ = true;
  // From the beginning, or to see whether it is the same engine still.
  if (CanReplay()) replay_ = Replay::kWanted;
}

void EngineFeed::Disconnected() {
  if (!connected_) return;
  connected_ = false;
  disconnected_at_ = clock_->Now();
  last_live_.reset();
  held_.reset();
  replay_ = Replay::kNone;
  unsure_ = true;
  // Else a replay tells whether it is the same engine, and what it published meanwhile.
  if (!options_.replays && next_) Forget();
}

void EngineFeed::Live(uint64_t number, std::string_view batch) {
  ++numbers_.live_batches;
  if (last_live_ && number <= *last_live_) {
    ++numbers_.restarts;
    Forget();
  }
  last_live_ = number;
  if (next_ && !unsure_ && number < *next_) return;  // A replay has brought it.
  const bool missing = unsure_ || (next_ ? number > *next_ : number > 0);
  if (!missing) return Accept(number, batch);
  if (next_ && number > *next_) ++numbers_.gaps;
  if (CanReplay()) {
    held_ = {.number = number, .bytes = std::string(batch)};
    replay_ = Replay::kWanted;
    return;
  }
  if (next_) Forget();
  unsure_ = false;
  Accept(number, batch);
}

std::optional<uint64_t> EngineFeed::TakeReplayRequest() {
  if (replay_ != Replay::kWanted) return std::nullopt;
  ++numbers_.replays;
  replay_ = Replay::kFirst;
  progress_ = false;
  replay_until_ = clock_->Now() + options_.replay_timeout;
  return next_ ? *next_ - 1 : 0;
}

void EngineFeed::Replayed(uint64_t number, std::string_view batch) {
  if (replay_ != Replay::kFirst && replay_ != Replay::kRest) return;
  replay_until_ = clock_->Now() + options_.replay_timeout;
  if (std::exchange(replay_, Replay::kRest) == Replay::kFirst && next_) {
    if (number + 1 == *next_ && HashOf(batch) == last_hash_) return;
    // It remembers no batch that is so old, or it is another engine.
    ++(number < *next_ ? numbers_.restarts : numbers_.failed_replays);
    Forget();
  }
  if (next_ && number != *next_) {
    if (std::exchange(progress_, false)) {
      replay_ = Replay::kWanted;
      return;
    }
    ++numbers_.failed_replays;
    Forget();
  }
  ++numbers_.replayed_batches;
  progress_ = true;
  Accept(number, batch);
}

void EngineFeed::ReplayEnded() {
  if (replay_ != Replay::kFirst && replay_ != Replay::kRest) return;
  if (replay_ == Replay::kFirst && next_) {
    // It does not have the last batch that is known: it has begun again, and is not yet so far.
    ++numbers_.restarts;
    Forget();
    replay_ = Replay::kWanted;
    return;
  }
  replay_ = Replay::kNone;
  unsure_ = false;
  const std::optional<Batch> held = std::exchange(held_, {});
  if (!held || (next_ && held->number < *next_)) return;
  if (next_ && held->number > *next_) {
    ++numbers_.failed_replays;
    Forget();
  }
  Accept(held->number, held->bytes);
}

bool EngineFeed::Tick() {
  const TimePoint now = clock_->Now();
  if (!connected_ && !left_ && now - disconnected_at_ >= options_.lost_after) {
    if (next_) Forget();
    view_->Leave();
    left_ = true;
  }
  if (replay_ == Replay::kNone && unsure_ && CanReplay()) replay_ = Replay::kWanted;
  if (replay_ == Replay::kNone || replay_ == Replay::kWanted || now < replay_until_) return false;
  if (progress_) {
    // Its end was lost, or it got stuck.
    replay_ = Replay::kWanted;
    return false;
  }
  FailReplay();
  return true;
}

void EngineFeed::FailReplay() {
  ++numbers_.failed_replays;
  no_replay_before_ = clock_->Now() + options_.replay_pause;
  replay_ = Replay::kNone;
  if (next_) Forget();
  const std::optional<Batch> held = std::exchange(held_, {});
  // Without one nothing is known, and a later replay may still bring all of it.
  unsure_ = !held;
  if (held) Accept(held->number, held->bytes);
}

void EngineFeed::Forget() {
  ++numbers_.forgotten;
  next_.reset();
  view_->Forget();
}

void EngineFeed::Accept(uint64_t number, std::string_view batch) {
  last_batch_at_ = clock_->Now();
  left_ = false;
  const auto decoded = DecodeBatch(batch);
  if (decoded.ok()) {
    view_->Apply(*decoded);
  } else {
    // It may have told of something that is gone.
    ++numbers_.junk;
    error_ = Message(decoded.status());
    if (next_) Forget();
  }
  next_ = number + 1;
  last_hash_ = HashOf(batch);
}

}  // namespace cairn::router
