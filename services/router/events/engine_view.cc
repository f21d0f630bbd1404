#include "services/router/events/engine_view.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

namespace cairn::router {
namespace {

using Mark = client::MemberEvent::Kind;

uint8_t BitOf(const EngineMedium& medium) {
  const auto tier = static_cast<unsigned>(medium.tier);
  return static_cast<uint8_t>(1u << (2 * tier + (medium.remote ? 1 : 0)));
}

bool IsIn(uint8_t places, size_t tier) { return (places >> (2 * tier) & 3) != 0; }

}  // namespace

EngineView::EngineView(Options options, Sink sink)
    : options_(std::move(options)), sink_(std::move(sink)), chain_(options_.space.fingerprint) {}

void EngineView::Apply(const EngineEventBatch& batch) {
  for (const EngineEvent& event : batch.events) {
    if (const auto* stored = std::get_if<EngineBlocksStored>(&event)) {
      ++numbers_.stored;
      Stored(*stored);
    } else if (const auto* removed = std::get_if<EngineBlocksRemoved>(&event)) {
      ++numbers_.removed;
      Removed(*removed);
    } else {
      ++numbers_.cleared;
      Forget();
    }
  }
  numbers_.unknown += batch.unknown;
}

std::optional<EngineView::Places> EngineView::PlaceOf(const EngineGroup& group,
                                                      const std::optional<EngineMedium>& medium,
                                                      uint64_t blocks) {
  if (!group.is_main()) {
    numbers_.skipped.group += blocks;
    return std::nullopt;
  }
  if (!medium) {
    numbers_.skipped.medium += blocks;
    return std::nullopt;
  }
  return BitOf(*medium);
}

void EngineView::Stored(const EngineBlocksStored& event) {
  const uint64_t blocks = event.hashes.size();
  const std::optional<Places> place = PlaceOf(event.group, event.medium, blocks);
  if (!place) return;
  if (event.tokens.empty()) {
    // The event is about a tier below the engine, which knows hashes alone. The blocks that they
    // stand for may be named later.
    for (const EngineHash& hash : event.hashes) {
      const uint32_t number = NumberOf(hash);
      if (!blocks_[number].name && options_.ask) {
        if (const auto name = options_.ask(hash)) SetName(number, *name);
      }
      SetPlaces(number, static_cast<Places>(blocks_[number].places | *place));
    }
    return;
  }
  const uint32_t size = options_.space.block_tokens;
  if (event.block_tokens != size) {
    numbers_.skipped.block_size += blocks;
    numbers_.other_block_tokens = event.block_tokens;
    return;
  }
  std::optional<BlockKey> parent;
  if (event.parent) {
    const auto found = numbers_of_.find(*event.parent);
    if (found != numbers_of_.end() && blocks_[found->second].name) {
      parent = blocks_[found->second].name->key;
    }
    if (!parent) {
      numbers_.skipped.parent += blocks;
      return;
    }
  }
  numbers_.skipped.special += blocks - event.plain_blocks;
  for (uint32_t i = 0; i < event.plain_blocks; ++i) {
    const auto tokens = std::span(event.tokens).subspan(size_t{i} * size, size);
    const BlockKey key = chain_.Next(parent, tokens);
    const uint32_t number = NumberOf(event.hashes[i]);
    SetName(number, {.key = key, .parent = parent});
    SetPlaces(number, static_cast<Places>(blocks_[number].places | *place));
    parent = key;
  }
  // A prompt's last blocks leave before its first ones, without which they are worth nothing.
  for (uint32_t i = event.plain_blocks; i-- > 0;) Touch(event.hashes[i]);
  if (event.parent) Touch(*event.parent);
}

void EngineView::Removed(const EngineBlocksRemoved& event) {
  const std::optional<Places> place = PlaceOf(event.group, event.medium, event.hashes.size());
  if (!place) return;
  for (const EngineHash& hash : event.hashes) {
    const auto found = numbers_of_.find(hash);
    if (found == numbers_of_.end()) continue;
    SetPlaces(found->second, static_cast<Places>(blocks_[found->second].places & ~*place));
  }
}

std::optional<EngineBlockName> EngineView::NameOf(const EngineHash& hash) const {
  const auto found = numbers_of_.find(hash);
  return found == numbers_of_.end() ? std::nullopt : blocks_[found->second].name;
}

void EngineView::Forget() {
  numbers_of_.clear();
  blocks_.clear();
  free_.clear();
  gone_ = held_ = {};
  // A snapshot with nothing in it.
  TellMark(Mark::kSnapshotBegins);
  TellMark(Mark::kSnapshotEnds);
}

void EngineView::Leave() {
  Forget();
  TellMark(Mark::kMemberLost);
}

EngineView::Numbers EngineView::numbers() const {
  Numbers numbers = numbers_;
  numbers.blocks = numbers_of_.size();
  return numbers;
}

uint32_t EngineView::NumberOf(const EngineHash& hash) {
  const auto found = numbers_of_.find(hash);
  if (found != numbers_of_.end()) return found->second;
  if (numbers_of_.size() >= std::max<uint32_t>(options_.max_blocks, 1)) Evict();
  uint32_t number = 0;
  if (free_.empty()) {
    number = static_cast<uint32_t>(blocks_.size());
    blocks_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  blocks_[number] = {.hash = hash, .name = {}};
  numbers_of_[hash] = number;
  Link(&gone_, number);
  return number;
}

void EngineView::Touch(const EngineHash& hash) {
  const auto found = numbers_of_.find(hash);
  if (found == numbers_of_.end()) return;
  Unlink(found->second);
  Link(ListOf(blocks_[found->second]), found->second);
}

void EngineView::SetName(uint32_t number, const EngineBlockName& name) {
  if (blocks_[number].name && blocks_[number].name->key == name.key) return;
  const Places before = blocks_[number].places;
  SetPlaces(number, 0);  // In case the hash stood for something else.
  blocks_[number].name = name;
  SetPlaces(number, before);
}

void EngineView::SetPlaces(uint32_t number, Places places) {
  Unlink(number);
  Block& block = blocks_[number];
  const Places before = std::exchange(block.places, places);
  Link(ListOf(block), number);
  if (!block.name) return;
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    if (IsIn(before, tier) == IsIn(places, tier)) continue;
    Tell(block, IsIn(places, tier) ? CacheEvent::Kind::kTierAdded : CacheEvent::Kind::kTierRemoved,
         static_cast<TierKind>(tier));
  }
}

void EngineView::Tell(const Block& block, CacheEvent::Kind kind, TierKind tier) {
  client::MemberEvent event;
  event.node_id = options_.member;
  event.event = {.kind = kind,
                 .fingerprint = options_.space.fingerprint,
                 .key = block.name->key,
                 .parent = block.name->parent,
                 .tier = tier};
  sink_(event);
}

void EngineView::TellMark(Mark kind) {
  client::MemberEvent event;
  event.kind = kind;
  event.node_id = options_.member;
  sink_(event);
}

void EngineView::Evict() {
  const bool held = gone_.oldest == kNone;
  const uint32_t number = held ? held_.oldest : gone_.oldest;
  if (held) {
    ++numbers_.evicted;
    SetPlaces(number, 0);
  }
  Unlink(number);
  numbers_of_.erase(blocks_[number].hash);
  free_.push_back(number);
}

void EngineView::Link(List* list, uint32_t number) {
  Block& block = blocks_[number];
  block.newer = kNone;
  block.older = list->newest;
  if (list->newest != kNone) blocks_[list->newest].newer = number;
  list->newest = number;
  if (list->oldest == kNone) list->oldest = number;
}

void EngineView::Unlink(uint32_t number) {
  const Block& block = blocks_[number];
  List* const list = ListOf(block);
  (block.newer == kNone ? list->newest : blocks_[block.newer].older) = block.older;
  (block.older == kNone ? list->oldest : blocks_[block.older].newer) = block.newer;
}

}  // namespace cairn::router
