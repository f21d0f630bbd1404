#pragma once
// An honest client of a node: it reads and writes blocks of its own tenant with the real client
// library, and checks every byte.

#include <atomic>
#include <memory>
#include <string>

#include "cairn/client/connect.h"
#include "tests/fault/adversary/honest_load.h"
#include "tests/fault/load/actions.h"

namespace cairn::fault {

// Thread-safe.
class HonestBlocks final : public HonestClient {
 public:
  struct Options {
    FaultModelOptions model;
    client::PathChoice path = client::PathChoice::kAuto;
  };
  // Waits until the node takes the model's namespace.
  HonestBlocks(const TestedServer& node, const Options& options);

  const HonestBlocks* blocks() const override { return this; }
  void Step(std::mt19937_64& random, HonestNotes& notes) override;

  const FaultModel& model() const { return model_; }
  // About the next prompt that a thread will store: hostile clients may want to be there first.
  uint64_t next_prompt() const { return next_prompt_.load(); }

 private:
  void ReadAndStore(uint64_t prompt, HonestNotes& notes);

  const FaultModel model_;
  std::unique_ptr<client::CacheClient> client_;
  std::atomic<uint64_t> next_prompt_{0};
};

}  // namespace cairn::fault
