#pragma once
// The tree nodes of an index, by number, in chunks. The memory of a chunk goes back when all of its
// nodes are free, but for one chunk that is kept for the next node. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "services/cache/store/index/key_map.h"

namespace cairn::cache {

// `Node`: default-constructible and movable.
template <typename Node>
class NodePool {
 public:
  static constexpr uint32_t kChunk = 256;

  Node& operator[](NodeId id) { return chunks_[id / kChunk].nodes[id % kChunk]; }
  const Node& operator[](NodeId id) const { return chunks_[id / kChunk].nodes[id % kChunk]; }

  // The lowest free numbers first, so that nodes lie in few chunks.
  NodeId Take() {
    if (open_.empty()) {
      open_.insert(static_cast<uint32_t>(chunks_.size()));
      chunks_.emplace_back();
    }
    const uint32_t index = *open_.begin();
    Chunk& chunk = chunks_[index];
    if (chunk.nodes == nullptr) {
      chunk.nodes = std::make_unique<Node[]>(kChunk);
      chunk.free.resize(kChunk);
      for (uint32_t i = 0; i < kChunk; ++i) chunk.free[i] = static_cast<uint8_t>(kChunk - 1 - i);
      ++in_memory_;
    } else if (index == spare_) {
      spare_ = kNone;
    }
    const NodeId id = index * kChunk + chunk.free.back();
    chunk.free.pop_back();
    if (chunk.free.empty()) open_.erase(open_.begin());
    ++used_;
    return id;
  }

  // The node is as new when it is taken again.
  void Free(NodeId id) {
    const uint32_t index = id / kChunk;
    Chunk& chunk = chunks_[index];
    chunk.nodes[id % kChunk] = Node{};
    if (chunk.free.empty()) open_.insert(index);
    chunk.free.push_back(static_cast<uint8_t>(id % kChunk));
    --used_;
    if (chunk.free.size() < kChunk) return;
    if (spare_ == kNone) {
      spare_ = index;
      return;
    }
    chunk = Chunk();
    --in_memory_;
  }

  size_t used() const { return used_; }
  // Numbers from this one on were never taken.
  NodeId end() const { return static_cast<NodeId>(chunks_.size() * kChunk); }
  // False: the node is free, and must not be looked at.
  bool InMemory(NodeId id) const { return chunks_[id / kChunk].nodes != nullptr; }
  // Calls `visit(NodeId)` for the nodes of every chunk in memory, free ones included, in order.
  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    for (uint32_t index = 0; index < chunks_.size(); ++index) {
      for (uint32_t i = 0; i < kChunk && chunks_[index].nodes != nullptr; ++i) {
        visit(index * kChunk + i);
      }
    }
  }
  size_t MemoryBytes() const {
    return in_memory_ * kChunk * (sizeof(Node) + 1) + chunks_.capacity() * sizeof(Chunk) +
           open_.size() * 48;
  }

 private:
  struct Chunk {
    std::unique_ptr<Node[]> nodes;  // nullptr: all are free.
    std::vector<uint8_t> free;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  std::vector<Chunk> chunks_;
  std::set<uint32_t> open_;  // Chunks with free nodes.
  uint32_t spare_ = kNone;   // All of its nodes are free.
  size_t in_memory_ = 0;
  size_t used_ = 0;
};

}  // namespace cairn::cache
