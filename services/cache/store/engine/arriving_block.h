#pragma once
// One block on its way from a source, shared by all who wait for it. Thread-safe, but the side that
// is a BlockSink belongs to the source.
//
// clang-format off
//   kUnderWay ─┬─ bytes verified, in host ────────► kInHost     in the index, and pinned
//              ├─ verified, in transfer buffers ──► kBuffered   readable as long as this lives
//              ├─ neither host nor buffers ───────► kNoRoom     ask again when something moved
//              └─ absent, late, damaged ──────────► kFailed
// clang-format on
//
// Bytes go to host, so that the block becomes one like all others. If host has no room for it, or a
// writer brings the same block at this moment, they go to a buffer of the transfer budget.

#include <memory>
#include <utility>
#include <vector>

#include "services/cache/store/block/recoder.h"
#include "services/cache/store/engine/block_intake.h"
#include "services/cache/store/engine/path_pins.h"
#include "services/cache/store/mover/transfer_budget.h"
#include "services/cache/store/source/block_source.h"

namespace cairn::cache {

class ArrivingBlock final : public BlockSink {
 public:
  enum class State : uint8_t { kUnderWay, kInHost, kBuffered, kNoRoom, kFailed };

  ArrivingBlock(NodeContext* context, BlockIntake* intake, TransferBudget* budget,
                NamespacePtr ns_in, const BlockKey& key_in)
      : token_(&context->in_flight),
        context_(*context),
        intake_(*intake),
        budget_(*budget),
        ns(std::move(ns_in)),
        key(key_in) {}
  ~ArrivingBlock() override { GiveRoomBack(); }

  // By the source. Refused once the outcome is known.
  Result<std::vector<std::span<std::byte>>> Begin(const SourceBlock& block) override;
  Status Finish() override;

  // The read is over, with the source's status: shows the block, or keeps or frees its bytes. By
  // one thread, once.
  void Complete(const Status& status);
  // The readers wait no longer. Bytes that the source still brings are dropped.
  void GiveUp(MissReason reason);

  State state() const {
    MutexLock lock(mu_);
    return state_;
  }
  // The reason for kFailed.
  MissReason reason() const {
    MutexLock lock(mu_);
    return reason_;
  }
  // For kInHost: whoever holds them finds the block in the index.
  std::shared_ptr<PathPins> pins() const {
    MutexLock lock(mu_);
    return pins_;
  }
  // For kBuffered: bytes of the parts of `block`, in their order.
  const SourceBlock& block() const { return block_; }
  std::span<const std::byte> bytes(size_t part) const { return rooms_[part]; }

 private:
  const InFlight::Token
      token_;  // First made, last gone: the budget and the arena are the engine's.
  NodeContext& context_;
  BlockIntake& intake_;
  TransferBudget& budget_;

 public:
  const NamespacePtr ns;
  const BlockKey key;

 private:
  Status CheckParts(const SourceBlock& block) const;
  // A source that brings less than it says must not show what lay here before.
  std::vector<std::span<std::byte>> ClearedRooms();
  void GiveRoomBack();
  // False: there is an outcome already.
  bool Settle(State state, MissReason reason, std::shared_ptr<PathPins> pins = nullptr);

  // Used by the source's thread, until the outcome.
  SourceBlock block_;
  Extents in_host_;  // Reserved, not committed; empty: the bytes are in buffers_.
  std::vector<PartBuffer> buffers_;
  std::shared_ptr<TransferBudget::Share> share_;
  std::vector<std::span<std::byte>> rooms_;
  bool verified_ = false;
  bool no_room_ = false;

  mutable Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kUnderWay;
  MissReason reason_ ABSL_GUARDED_BY(mu_) = MissReason::kNone;
  std::shared_ptr<PathPins> pins_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
