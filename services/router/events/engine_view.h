#pragma once
// The blocks that one engine holds, from its events, as events of a member of the router's index.
//
//   engine's hash ──► the key over the block's tokens and the key before it ──► PrefixIndex
//
// An engine names blocks by hashes of its own, which say nothing about another engine's. The tokens
// of an event say what a hash stands for, and the view remembers that: removals, and events that
// add a place to a block, have no tokens. A block whose key is not known is in no answer. Engines
// that share a cache node have the same hashes: then what one engine's events say helps the others.
//
//   gone    the key is known, the block is nowhere. It may come back, such as from a cache node.
//   held    the block is somewhere
//
// At `max_blocks` those leave that are gone, the oldest first; then those that are held, the oldest
// first, and the index forgets them: nothing is believed of which no removal would be noticed.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cairn/client/cluster_events.h"
#include "cairn/common/namespace_spec.h"
#include "services/router/events/engine_groups.h"
#include "services/router/events/kv_event.h"
#include "services/router/registry/engine_namespace.h"

namespace cairn::router {

// Blocks that a view left aside, by reason.
struct SkippedBlocks {
  uint64_t special = 0;  // They depend on an adapter, a salt, an image.
  uint64_t group = 0;    // They belong to a group of layers of which no event said what it needs.
  uint64_t block_size = 0;  // They have another size than the router's.
  uint64_t medium = 0;      // In a place of an unknown kind.
  uint64_t parent = 0;      // The blocks before them are not known.
};

// The block that a hash stands for.
struct EngineBlockName {
  BlockKey key = {};
  std::optional<BlockKey> parent = {};
};

// Not thread-safe.
class EngineView {
 public:
  // About the memory of a block that is known.
  static constexpr uint64_t kBlockBytes = 190;
  // The block of a hash, as another view knows it.
  using Ask = std::function<std::optional<EngineBlockName>(const EngineHash&)>;
  struct Options {
    std::string member = {};  // Its id in the index: the worker's URL.
    EngineNamespace space = {};
    uint32_t max_blocks = 262'144;  // Each takes kBlockBytes. At least 1.
    Ask ask = {};                   // For hashes that this engine's events do not explain.
  };
  // The second argument is that of PrefixIndex::Apply: 0, or how many blocks before a prompt's end
  // the groups need that the event is about.
  using Sink = std::function<void(const client::MemberEvent&, uint32_t tail_blocks)>;

  // `sink`: PrefixIndex::Apply.
  EngineView(Options options, Sink sink);

  void Apply(const EngineEventBatch& batch);
  // The block that a hash stands for, if this engine's events, or those of others, have named it.
  std::optional<EngineBlockName> NameOf(const EngineHash& hash) const;
  // The engine holds nothing that is known: it has restarted, or events were lost.
  void Forget();
  // The engine is gone: it is no member any more.
  void Leave();

  struct Numbers {
    uint64_t stored = 0;  // Events of each kind.
    uint64_t removed = 0;
    uint64_t cleared = 0;
    uint64_t unknown = 0;
    SkippedBlocks skipped = {};
    uint64_t evicted = 0;             // Held blocks that left because of max_blocks.
    uint64_t blocks = 0;              // Blocks that are known now, gone ones included.
    uint32_t other_block_tokens = 0;  // The last size of blocks that was not the router's. 0: none.

    // Sums, but for the size.
    Numbers& operator+=(const Numbers& other);
  };
  Numbers numbers() const;

 private:
  using Places = EnginePlaces;
  using InGroups = EngineGroups::InGroups;
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Block {
    EngineHash hash;
    std::optional<EngineBlockName> name;  // nullopt: no event said what it stands for.
    InGroups places = {};
    uint32_t newer = kNone, older = kNone;
  };
  // Blocks in the order of their last event.
  struct List {
    uint32_t newest = kNone, oldest = kNone;
  };

  // A place of a group.
  struct Spot {
    uint32_t group = 0;
    Places place = 0;
  };
  // Where an event's blocks are. nullopt: such blocks are not followed, and were counted.
  std::optional<Spot> SpotOf(const EngineBlocksStored& event);
  // As EngineGroups::Add. Tells the index if less is held then.
  std::optional<uint32_t> AddGroup(const EngineGroup& group);
  void Stored(const EngineBlocksStored& event);
  void Removed(const EngineBlocksRemoved& event);
  // The block's number; it comes into being.
  uint32_t NumberOf(const EngineHash& hash);
  // The block becomes the newest one of its list.
  void Touch(const EngineHash& hash);
  void SetName(uint32_t number, const EngineBlockName& name);
  // Changes where a block is, and tells the index what differs.
  void SetPlaces(uint32_t number, const InGroups& places);
  void Add(uint32_t number, const Spot& spot);
  void Remove(uint32_t number, const Spot& spot);
  void TellChange(const Block& block, const EngineGroups::Held& before,
                  const EngineGroups::Held& after);
  void Tell(const Block& block, bool added, TierKind tier, uint32_t tail_blocks);
  void TellMark(client::MemberEvent::Kind kind);
  void Evict();
  void Link(List* list, uint32_t number);
  void Unlink(uint32_t number);
  List* ListOf(const Block& block) { return block.places == InGroups{} ? &gone_ : &held_; }

  const Options options_;
  const Sink sink_;
  BlockKeyChain chain_;
  absl::flat_hash_map<EngineHash, uint32_t> numbers_of_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> free_;
  List gone_, held_;
  EngineGroups groups_;
  Numbers numbers_;
};

}  // namespace cairn::router
