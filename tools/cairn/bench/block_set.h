#pragma once
// The blocks that a benchmark stores and reads back: random bytes, sealed once, kept here so that
// every byte that comes back can be compared.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"
#include "tools/cairn/bench/buffer.h"

namespace cairn::cli::bench {

// Immutable after Make, and shared: the network may use a part until some time after a push.
class BlockSet : public std::enable_shared_from_this<BlockSet> {
 public:
  static constexpr std::string_view kTenant = "default";  // Its clients should name it.
  struct Options {
    uint64_t block_bytes = 0;  // Payload of a block, all layers.
    uint32_t layers = 1;       // Slices of a block.
    uint32_t blocks = 0;
    uint64_t seed = 1;  // The seed of bytes and keys: sets with different seeds share nothing.
  };
  // INVALID_ARGUMENT when block_bytes is not layers times a multiple of 128 up to 8 MiB: the bytes
  // that a layer of 64 tokens can have.
  static Result<std::shared_ptr<const BlockSet>> Make(const Options& options);

  const NamespaceSpec& spec() const { return spec_; }
  const Digest& fingerprint() const { return fingerprint_; }
  uint32_t blocks() const { return options_.blocks; }
  uint64_t block_bytes() const { return options_.block_bytes; }
  uint64_t slice_bytes() const { return options_.block_bytes / options_.layers; }
  uint64_t part_bytes() const { return part_bytes_; }
  uint16_t block_tokens() const { return static_cast<uint16_t>(spec_.layout.block_tokens); }
  uint64_t header_bytes() const { return header_bytes_; }
  format::PartRect rect() const { return spec_.layout.WholeRect(); }

  // REQUIRES of all three: block < blocks().
  std::span<const std::byte> Part(uint32_t block) const;     // Header and slices.
  std::span<const std::byte> Payload(uint32_t block) const;  // The slices of all layers.
  // The same bytes may be stored many times: each generation has keys of its own.
  BlockKey Key(uint64_t generation, uint32_t block) const;
  // Keys of the blocks [begin, end).
  std::vector<BlockKey> Keys(uint64_t generation, uint32_t begin, uint32_t end) const;

  // The parts to push for the blocks [begin, end): chains of `chain` blocks, each the parent of the
  // next. Without a copy: the parts keep this set alive.
  std::vector<client::PartToPush> ToPush(uint64_t generation, uint32_t begin, uint32_t end,
                                         uint32_t chain) const;
  // The same blocks for BeginPush.
  std::vector<client::PartToWrite> ToWrite(uint64_t generation, uint32_t begin, uint32_t end,
                                           uint32_t chain) const;

 private:
  explicit BlockSet(const Options& options) : options_(options) {}
  std::optional<BlockKey> Parent(uint64_t generation, uint32_t block, uint32_t chain) const;

  const Options options_;
  NamespaceSpec spec_;
  Digest fingerprint_;
  uint64_t header_bytes_ = 0;
  uint64_t part_bytes_ = 0;
  Buffer bytes_;
};

// A slice that was lent instead of copied.
struct LentSlice {
  uint32_t block = 0;  // As in SliceInfo.
  uint32_t layer = 0;
  std::span<const std::byte> bytes;
  std::shared_ptr<const client::LentHold> hold;
};

// Writes what a fetch brings to memory, block after block. Counts what came; the caller compares.
class MemorySink final : public client::FetchSink {
 public:
  // Block 0 of the lease goes to the start of `memory`. With `lent`, slices that the node lends are
  // put there and not copied.
  MemorySink(std::span<std::byte> memory, uint64_t block_bytes,
             std::vector<LentSlice>* lent = nullptr)
      : memory_(memory), block_bytes_(block_bytes), lent_(lent) {}

  std::span<std::byte> Destination(const client::SliceInfo& slice) override;
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override;
  void OnBlockFailed(uint32_t block, client::MissReason reason) override;
  bool WantsLent() const override { return lent_ != nullptr; }
  Status OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const client::LentHold> hold) override;

  // OK when no block failed and `expected` bytes came.
  Status Check(uint64_t expected) const;

 private:
  const std::span<std::byte> memory_;
  const uint64_t block_bytes_;
  std::vector<LentSlice>* const lent_;
  uint64_t bytes_ = 0;
  Status failed_;
};

// DATA_LOSS naming the first slice that differs from the blocks' payload, or that the node took
// back meanwhile. Block 0 of the slices is `first` of the set.
Status CompareLent(const BlockSet& set, uint32_t first, std::span<const LentSlice> slices);

// DATA_LOSS naming the first of the blocks [begin, end) whose payload is not what `memory` holds at
// its place, block 0 at the start.
Status ComparePayload(const BlockSet& set, uint32_t begin, uint32_t end,
                      std::span<const std::byte> memory);

}  // namespace cairn::cli::bench
