#pragma once
// The lists through which kernels find what a pass computes on: tokens, places of rows in pages,
// tables of pages. They lie in the device's memory, in one piece. Those whose length is the number
// of rows stand first, and tables of pages last: passes with the same numbers of rows, runs and
// wanted logits have the same addresses, so launches that were noted once find the next step's.
//
// Not thread-safe.

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/kernels/batch/attention.h"
#include "cairn/kernels/batch/forward_kernels.h"
#include "common/device/device.h"
#include "services/worker/compute/device/device_run.h"
#include "services/worker/compute/device/growing_memory.h"
#include "services/worker/compute/device/prefix_mirror.h"

namespace cairn::worker {

class PassLists {
 public:
  PassLists(std::shared_ptr<device::Device> device, const KvLayout& kv)
      : device_(std::move(device)), kv_(kv) {}

  // Makes the lists of `runs`, of which those of prompts come first, and copies them to the device
  // on `stream`. `logits_rows`: of which logits are wanted. REQUIRES: nothing uses the last ones.
  Status Make(std::span<const DeviceRun> runs, std::span<const int32_t> logits_rows,
              PrefixMirror& prefixes, device::Stream* stream);

  // The lists of the last Make, on the device.
  const int32_t* tokens() const { return tokens_; }
  const kernels::batch::KvPlace* places() const { return places_; }
  // The sequences that decode.
  const kernels::batch::SequenceKv* sequences() const { return sequences_; }
  const kernels::batch::PromptChunk* chunks() const { return chunks_; }
  const int32_t* logits_rows() const { return logits_rows_; }
  // The splits of the sequence that has most.
  int64_t most_splits() const { return most_splits_; }
  // Grows when addresses change that were noted.
  uint64_t moves() const { return memory_.moves(); }

 private:
  // A list's place: first all are taken, then they are written.
  template <typename T>
  struct Place {
    size_t offset = 0;
    int64_t count = 0;
  };
  struct Places {
    Place<int32_t> tokens, logits_rows;
    Place<kernels::batch::KvPlace> rows;
    Place<kernels::batch::SequenceKv> sequences;
    Place<kernels::batch::PromptChunk> chunks;
    size_t tables = 0;  // Where the first table of pages begins.
    size_t end = 0;
  };
  static Places PlacesOf(std::span<const DeviceRun> runs, int64_t logits);
  template <typename T>
  const T* Write(const Place<T>& place, const std::vector<T>& list);
  int64_t SplitsOfRun(const DeviceRun& run) const;

  const std::shared_ptr<device::Device> device_;
  const KvLayout kv_;
  GrowingMemory memory_;
  device::PinnedMemory host_;
  const int32_t* tokens_ = nullptr;
  const kernels::batch::KvPlace* places_ = nullptr;
  const kernels::batch::SequenceKv* sequences_ = nullptr;
  const kernels::batch::PromptChunk* chunks_ = nullptr;
  const int32_t* logits_rows_ = nullptr;
  int64_t most_splits_ = 0;
};

}  // namespace cairn::worker
