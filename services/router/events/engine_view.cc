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

const uint8_t kOwnMemory = BitOf({.tier = TierKind::kDevice});

bool IsIn(uint8_t places, size_t tier) { return (places >> (2 * tier) & 3) != 0; }

}  // namespace

EngineView::Numbers& EngineView::Numbers::operator+=(const Numbers& other) {
  stored += other.stored;
  removed += other.removed;
  cleared += other.cleared;
  unknown += other.unknown;
  skipped.special += other.skipped.special;
  skipped.group += other.skipped.group;
  skipped.block_size += other.skipped.block_size;
  skipped.medium += other.skipped.medium;
  skipped.parent += other.skipped.parent;
  evicted += other.evicted;
  blocks += other.blocks;
  return *this;
}

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

std::optional<EngineView::Spot> EngineView::SpotOf(const EngineBlocksStored& event) {
  const uint64_t blocks = event.hashes.size();
  std::optional<uint32_t> number = groups_.Find(event.group.index);
  if (!number) number = AddGroup(event.group);
  if (!number) {
    numbers_.skipped.group += blocks;
    return std::nullopt;
  }
  if (!event.medium) {
    numbers_.skipped.medium += blocks;
    return std::nullopt;
  }
  return Spot{.group = *number, .place = BitOf(*event.medium)};
}

std::optional<uint32_t> EngineView::AddGroup(const EngineGroup& group) {
  const EngineGroups before = groups_;
  const auto number = groups_.Add(group, options_.space.block_tokens);
  if (!number) return std::nullopt;
  for (const auto& [hash, block] : numbers_of_) {
    const InGroups& places = blocks_[block].places;
    TellChange(blocks_[block], before.Of(places), groups_.Of(places));
  }
  return number;
}

void EngineView::Stored(const EngineBlocksStored& event) {
  const uint64_t blocks = event.hashes.size();
  const uint32_t size = options_.space.block_tokens;
  // Events about a tier below the engine may name no size.
  if (event.block_tokens != size && (!event.tokens.empty() || event.block_tokens != 0)) {
    if (KeepsAllBlocks(event.group)) {
      numbers_.skipped.block_size += blocks;
      numbers_.other_block_tokens = event.block_tokens;
    } else {
      numbers_.skipped.group += blocks;
    }
    return;
  }
  const std::optional<Spot> spot = SpotOf(event);
  if (!spot) return;
  if (event.tokens.empty() || !KeepsAllBlocks(event.group)) {
    // A tier below the engine knows hashes alone. Blocks of windows and states have the hashes of
    // those of full attention. All of these may be named later.
    for (const EngineHash& hash : event.hashes) {
      const uint32_t number = NumberOf(hash);
      if (!blocks_[number].name && options_.ask) {
        if (const auto name = options_.ask(hash)) SetName(number, *name);
      }
      Add(number, *spot);
    }
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
    Add(number, *spot);
    parent = key;
  }
  // A prompt's last blocks leave before its first ones, without which they are worth nothing.
  for (uint32_t i = event.plain_blocks; i-- > 0;) Touch(event.hashes[i]);
  if (event.parent) Touch(*event.parent);
}

void EngineView::Removed(const EngineBlocksRemoved& event) {
  // It does not say what the group needs, so a group that is not known stays so.
  const auto group = groups_.Find(event.group.index);
  if (!group || !event.medium) return;
  const Spot spot{.group = *group, .place = BitOf(*event.medium)};
  for (const EngineHash& hash : event.hashes) {
    const auto found = numbers_of_.find(hash);
    if (found != numbers_of_.end()) Remove(found->second, spot);
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
  groups_.Clear();
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
  const InGroups before = blocks_[number].places;
  SetPlaces(number, {});  // In case the hash stood for something else.
  blocks_[number].name = name;
  SetPlaces(number, before);
}

void EngineView::SetPlaces(uint32_t number, const InGroups& places) {
  Unlink(number);
  Block& block = blocks_[number];
  const InGroups before = std::exchange(block.places, places);
  Link(ListOf(block), number);
  TellChange(block, groups_.Of(before), groups_.Of(places));
}

void EngineView::Add(uint32_t number, const Spot& spot) {
  InGroups places = blocks_[number].places;
  EngineGroups::InGroup& one = places[spot.group];
  one.places |= spot.place;
  if (spot.place == kOwnMemory && one.copies < UINT8_MAX) ++one.copies;
  SetPlaces(number, places);
}

void EngineView::Remove(uint32_t number, const Spot& spot) {
  InGroups places = blocks_[number].places;
  EngineGroups::InGroup& one = places[spot.group];
  if (spot.place != kOwnMemory || one.copies <= 1) {
    one.places &= static_cast<Places>(~spot.place);
  }
  if (spot.place == kOwnMemory && one.copies > 0) --one.copies;
  SetPlaces(number, places);
}

void EngineView::TellChange(const Block& block, const EngineGroups::Held& before,
                            const EngineGroups::Held& after) {
  if (!block.name) return;
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    const bool added = IsIn(after.whole, tier);
    if (IsIn(before.whole, tier) != added) Tell(block, added, static_cast<TierKind>(tier), 0);
  }
  const auto& tails = groups_.tails();
  for (size_t i = 0; i < tails.size(); ++i) {
    const bool added = (after.tails >> i & 1) != 0;
    // In which tier it is makes no difference.
    if ((before.tails >> i & 1) != added) Tell(block, added, TierKind::kHost, tails[i]);
  }
}

void EngineView::Tell(const Block& block, bool added, TierKind tier, uint32_t tail_blocks) {
  client::MemberEvent event;
  event.node_id = options_.member;
  event.event = {.kind = added ? CacheEvent::Kind::kTierAdded : CacheEvent::Kind::kTierRemoved,
                 .fingerprint = options_.space.fingerprint,
                 .key = block.name->key,
                 .parent = block.name->parent,
                 .tier = tier};
  sink_(event, tail_blocks);
}

void EngineView::TellMark(Mark kind) {
  client::MemberEvent event;
  event.kind = kind;
  event.node_id = options_.member;
  sink_(event, 0);
}

void EngineView::Evict() {
  const bool held = gone_.oldest == kNone;
  const uint32_t number = held ? held_.oldest : gone_.oldest;
  if (held) {
    ++numbers_.evicted;
    SetPlaces(number, {});
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
