#include "services/cache/store/engine/source_reads.h"

#include <utility>

#include "common/concurrency/runs_once.h"

namespace cairn::cache {
namespace {

constexpr size_t kMaxUnderWay = 16;

}  // namespace

SourceReads::SourceReads(NodeContext* context, BlockIntake* intake, TransferBudget* budget,
                         BlockSource* source, Timers* timers)
    : context_(*context),
      intake_(*intake),
      budget_(*budget),
      source_(source),
      timers_(timers),
      pump_(context->executor, [this] { return StartOne(); }) {}

std::shared_ptr<ArrivingBlock> SourceReads::Request(const NamespacePtr& ns, const BlockKey& key) {
  std::shared_ptr<ArrivingBlock> block;
  {
    MutexLock lock(mu_);
    const Id id{ns.get(), key};
    if (const auto it = entries_.find(id); it != entries_.end()) return it->second.block;
    if (entries_.size() >= context_.options.mover_queue_capacity) return nullptr;
    block = std::make_shared<ArrivingBlock>(&context_, &intake_, &budget_, ns, key);
    entries_[id].block = block;
    if (line_.empty()) last_end_ = context_.clock->Now();
    line_.push_back(id);
    WatchLine();
  }
  pump_.Kick();
  return block;
}

bool SourceReads::StartOne() {
  std::vector<Entry> forgotten;  // Destroyed without the lock.
  std::shared_ptr<ArrivingBlock> block;
  TimePoint deadline;
  Timers::Id line_timer = 0;
  {
    MutexLock lock(mu_);
    while (block == nullptr && under_way_ < kMaxUnderWay && !line_.empty()) {
      const auto it = entries_.find(line_.front());
      line_.pop_front();
      if (it == entries_.end() || it->second.started) continue;
      // Nobody but this table holds it.
      if (it->second.block.use_count() == 1) {
        forgotten.push_back(std::move(it->second));
        entries_.erase(it);
        continue;
      }
      it->second.started = true;
      ++under_way_;
      deadline = context_.clock->Now() + context_.options.source_read_timeout;
      it->second.timer = timers_->At(deadline, [this, weak = std::weak_ptr(it->second.block)] {
        if (const auto late = weak.lock()) GiveUp(late);
      });
      block = it->second.block;
    }
    if (line_.empty()) line_timer = std::exchange(line_timer_, 0);
  }
  if (line_timer != 0) timers_->Cancel(line_timer);
  if (block == nullptr) return false;
  // The source may keep its callback for longer than the block is of use.
  source_->Read(block->ns->fingerprint, block->key, deadline, block.get(),
                RunsOnce([this, block](const Status& status) { Finish(block, status); },
                         [] { return Errorf(StatusCode::kCancelled, "the source went away"); }));
  return true;
}

std::optional<SourceReads::Entry> SourceReads::TakeEntry(const ArrivingBlock& block) {
  const auto it = entries_.find(Id{block.ns.get(), block.key});
  if (it == entries_.end() || it->second.block.get() != &block) return std::nullopt;
  Entry entry = std::move(it->second);
  entries_.erase(it);
  return entry;
}

void SourceReads::Finish(const std::shared_ptr<ArrivingBlock>& block, const Status& status) {
  block->Complete(status);
  std::optional<Entry> entry;
  {
    MutexLock lock(mu_);
    entry = TakeEntry(*block);
    --under_way_;
    last_end_ = context_.clock->Now();
  }
  if (entry && entry->started) timers_->Cancel(entry->timer);
  context_.progress.Notify();
  pump_.Kick();
}

void SourceReads::GiveUp(const std::shared_ptr<ArrivingBlock>& block) {
  block->GiveUp(MissReason::kDeadline);
  std::optional<Entry> entry;
  {
    MutexLock lock(mu_);
    entry = TakeEntry(*block);
  }
  context_.progress.Notify();
}

void SourceReads::WatchLine() {
  if (line_timer_ != 0) return;
  line_timer_ = timers_->At(
      last_end_ + context_.options.source_read_timeout,
      [this, token = std::make_shared<InFlight::Token>(&context_.in_flight)] { LookAtLine(); });
}

void SourceReads::LookAtLine() {
  std::vector<std::shared_ptr<ArrivingBlock>> late;
  {
    MutexLock lock(mu_);
    line_timer_ = 0;
    if (line_.empty()) return;
    if (context_.clock->Now() < last_end_ + context_.options.source_read_timeout) {
      return WatchLine();
    }
    for (const Id& id : line_) {
      const auto it = entries_.find(id);
      if (it != entries_.end() && !it->second.started) late.push_back(it->second.block);
    }
    line_.clear();
  }
  for (const auto& block : late) GiveUp(block);
}

void SourceReads::Close() {
  absl::flat_hash_map<Id, Entry> entries;
  Timers::Id line_timer = 0;
  {
    MutexLock lock(mu_);
    entries.swap(entries_);
    line_.clear();
    line_timer = std::exchange(line_timer_, 0);
  }
  if (line_timer != 0) timers_->Cancel(line_timer);
  for (const auto& [id, entry] : entries) {
    if (entry.started) timers_->Cancel(entry.timer);
  }
}

}  // namespace cairn::cache
