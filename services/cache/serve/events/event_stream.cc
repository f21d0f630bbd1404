#include "services/cache/serve/events/event_stream.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace cairn::cache {
namespace {

using Kind = EventShape::Kind;

constexpr size_t kAtOnce = 1024;  // Events of the engine.
// About: a run of blocks in a batch, and each of its hashes.
constexpr size_t kEventBytes = 200, kHashBytes = 34;
// Namespaces come and go. Beyond this many, those of which nothing was told are forgotten.
constexpr size_t kMostNamespaces = 65'536;

uint64_t SizeOf(const EventBatch& batch) {
  return batch.bytes->size() + EventStream::kBatchOverhead;
}

}  // namespace

EventStream::EventStream(Options options, Dependencies dependencies, Sink sink)
    : options_(std::move(options)),
      dependencies_(std::move(dependencies)),
      sink_(std::move(sink)) {}

bool EventStream::Step() {
  const TimePoint now = dependencies_.clock->Now();
  if (wanted_ && now >= due_ && !Begin(*wanted_)) return false;
  if (queue_ == nullptr) return false;
  const bool after_beginning = !beginning_;
  const auto events = queue_->Next(kAtOnce, now);
  if (!events.ok()) {
    queue_.reset();
    if (std::exchange(beginning_, false)) ended_at_ = now;
    repeats_ = false;
    Want(Cause::kLagged, kPause);
    return true;
  }
  for (const CacheEvent& event : *events) Handle(event);
  Flush();
  // All that waited when the beginning ended has come.
  if (after_beginning && events->size() < kAtOnce) repeats_ = false;
  return events->size() == kAtOnce || beginning_;
}

void EventStream::Replay(uint64_t from, const Sink& take) {
  ++numbers_.replays;
  for (const EventBatch& batch : kept_) {
    if (batch.number >= from) take(batch);
  }
  if (kept_.empty() || from >= kept_.front().number) return;
  ++numbers_.incomplete_replays;
  if (begun_with_ < kept_.front().number) Want(Cause::kAsked, kPauseAsked);
}

EventStream::Numbers EventStream::numbers() const {
  Numbers numbers = numbers_;
  numbers.kept_batches = kept_.size();
  return numbers;
}

void EventStream::Want(Cause cause, Duration pause) {
  const TimePoint now = dependencies_.clock->Now();
  const TimePoint last = beginning_ ? now : ended_at_;
  const TimePoint due = last + std::max(pause, 10 * (last - began_at_));
  if (wanted_ && due_ <= due) return;
  wanted_ = cause;
  due_ = due;
}

bool EventStream::Begin(Cause cause) {
  auto queue = dependencies_.engine->Watch({.snapshot = true, .tenant = options_.tenant});
  if (!queue.ok()) return false;
  queue_ = *std::move(queue);
  wanted_.reset();
  ++numbers_.beginnings[static_cast<size_t>(cause)];
  beginning_ = true;
  repeats_ = false;
  began_at_ = dependencies_.clock->Now();
  begun_with_ = next_;
  // Readers forget the blocks of all topics in which they know any. After a start that is what an
  // earlier process told.
  std::set<std::string> topics = std::exchange(told_topics_, {});
  namespaces_.clear();
  numbers_.namespaces = numbers_.skipped_namespaces = 0;
  for (const NamespaceInfo& info : dependencies_.engine->ListNamespaces(options_.tenant)) {
    const Followed* const followed = Find(info.fingerprint);
    if (followed != nullptr && followed->form) topics.insert(*followed->form->topic());
  }
  if (topics.empty()) topics.insert(TopicOf(options_.topic, options_.names, ""));
  const KvEvent cleared;
  for (const std::string& topic : topics) {
    Publish(std::make_shared<const std::string>(topic), {&cleared, 1});
  }
  return true;
}

EventStream::Followed* EventStream::Find(const Fingerprint& fingerprint) {
  if (const auto known = namespaces_.find(fingerprint); known != namespaces_.end()) {
    return &known->second;
  }
  const auto spec = dependencies_.engine->GetNamespace(fingerprint);
  if (!spec.ok()) return nullptr;
  if (namespaces_.size() >= kMostNamespaces) {
    absl::erase_if(namespaces_, [this](const auto& entry) {
      if (entry.second.told) return false;
      Count(entry.second, -1);
      return true;
    });
  }
  Followed followed{
      .form = NamespaceForm::Of(**spec, TopicOf(options_.topic, options_.names, (*spec)->model),
                                options_.bytes)};
  if (followed.form) WarnIfShared(fingerprint, *followed.form);
  Count(followed, 1);
  return &namespaces_.emplace(fingerprint, std::move(followed)).first->second;
}

void EventStream::Count(const Followed& followed, int change) {
  (followed.form ? numbers_.namespaces : numbers_.skipped_namespaces) +=
      static_cast<uint64_t>(change);
}

void EventStream::WarnIfShared(const Fingerprint& fingerprint, const NamespaceForm& form) const {
  for (const auto& [other, followed] : namespaces_) {
    if (!followed.form || *followed.form->topic() != *form.topic()) continue;
    // A block that leaves one of them counts as gone, though the other one may have it.
    log::Warn("events_share_a_topic",
              {{"topic", *form.topic()}, {"namespace", fingerprint.Hex()}, {"other", other.Hex()}});
    return;
  }
}

void EventStream::Handle(const CacheEvent& event) {
  using Event = CacheEvent::Kind;
  if (event.kind == Event::kSnapshotEnd) {
    beginning_ = false;
    repeats_ = true;
    ended_at_ = dependencies_.clock->Now();
    return;
  }
  if (event.kind == Event::kNamespaceDropped) {
    const auto known = namespaces_.find(event.fingerprint);
    if (known == namespaces_.end()) return;
    if (known->second.told) Want(Cause::kDropped, kPause);
    Count(known->second, -1);
    namespaces_.erase(known);
    return;
  }
  Followed* const followed = Find(event.fingerprint);
  if (followed == nullptr || !followed->form) return;
  const bool entered = event.kind == Event::kStored || event.kind == Event::kTierAdded;
  const auto shape =
      followed->form->ShapeOf(entered ? Kind::kStored : Kind::kRemoved, event.tier, event.pool);
  if (!shape) return;
  followed->told = true;
  ++(entered ? numbers_.stored : numbers_.removed);
  Add(*followed->form, *shape, PoolKey(event.key, event.pool));
}

void EventStream::Add(const NamespaceForm& form, const EventShape& shape, const BlockKey& hash) {
  if (open_.topic != form.topic() || open_.bytes >= kBatchBytes) Flush();
  open_.topic = form.topic();
  const bool again = repeats_ && shape.kind == Kind::kStored;
  std::vector<KvEvent>& events = open_.events;
  if (events.empty() || events.back().shape != shape || open_.again != again) {
    if (again) {
      EventShape removed = shape;
      removed.kind = Kind::kRemoved;
      events.push_back({.shape = removed});
    }
    events.push_back({.shape = shape});
    open_.again = again;
    open_.bytes += again ? 2 * kEventBytes : kEventBytes;
  }
  if (again) events[events.size() - 2].hashes.push_back(hash);
  events.back().hashes.push_back(hash);
  open_.bytes += again ? 2 * kHashBytes : kHashBytes;
}

void EventStream::Flush() {
  if (!open_.events.empty()) {
    told_topics_.insert(*open_.topic);
    Publish(open_.topic, open_.events);
  }
  open_ = {};
}

void EventStream::Publish(const std::shared_ptr<const std::string>& topic,
                          std::span<const KvEvent> events) {
  EventBatch batch{.number = next_++,
                   .topic = topic,
                   .bytes = std::make_shared<const std::string>(
                       EncodeBatch(dependencies_.unix_time(), events, options_.encoding))};
  ++numbers_.batches;
  Keep(batch);
  sink_(batch);
}

void EventStream::Keep(const EventBatch& batch) {
  kept_.push_back(batch);
  numbers_.kept_bytes += SizeOf(batch);
  while (numbers_.kept_bytes > options_.kept_bytes && kept_.size() > 1) {
    numbers_.kept_bytes -= SizeOf(kept_.front());
    kept_.pop_front();
  }
}

}  // namespace cairn::cache
