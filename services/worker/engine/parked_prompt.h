#pragma once
// The way back of a request that was parked with a copy of its KV.

#include <utility>

#include "services/worker/engine/prompt_way.h"
#include "services/worker/session/parked_kv.h"

namespace cairn::worker {

// As PromptWay. Not thread-safe. The first step writes the copy into the sequence.
class ParkedPrompt final : public PromptWay {
 public:
  // `sequence` is empty, has room for the copy's tokens when Next is called, and outlives this.
  ParkedPrompt(ParkedKv kv, KvSequence& sequence) : kv_(std::move(kv)), sequence_(sequence) {}

  Step Next(int64_t /*max_rows*/, bool /*alone*/) override {
    kv_.Restore(sequence_);
    finished_ = true;
    return {Step::Kind::kWorked};
  }
  void Computed(const Status& /*status*/, const Pass& /*pass*/) override {}
  bool finished() const override { return finished_; }
  PromptReport TakeReport() override { return {}; }
  bool begun() const override { return finished_; }
  size_t kept_bytes() const override { return kv_.bytes(); }

 private:
  const ParkedKv kv_;
  KvSequence& sequence_;
  bool finished_ = false;
};

}  // namespace cairn::worker
