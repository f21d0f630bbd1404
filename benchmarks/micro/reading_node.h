#pragma once
// A context that lies at a cache node, for reading_bench: rows come from there, as those of a spilt
// prompt do.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/micro/reading_programs.h"
#include "cairn/client/cache_client.h"
#include "cairn/common/namespace_spec.h"
#include "common/concurrency/executor.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/methods/reading/row_source.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {

class ContextAtNode {
 public:
  // Pushes the whole blocks of `tokens`, whose KV `sequence` has, and waits until they are on the
  // node's disk, if it has one. Ends the program with a message if the node does not take them.
  // `model` must outlive it.
  ContextAtNode(const std::string& address, const ReadingModel& model, const KvSequence& sequence,
                std::span<const int32_t> tokens);

  // Leases the blocks. Gathers run on `executor`, of one thread, which must outlive the source.
  std::unique_ptr<RowSource> Rows(Executor& executor) const;

  // Bytes that the node has sent since it started, and those of them that came from its disk.
  struct Sent {
    uint64_t all = 0, disk = 0;
  };
  Sent GetSent() const;

  // Bytes of rows that were asked of the node: as they are, and with each end of a run of rows of a
  // head rounded to 4 KiB, which is what a disk can read.
  struct Asked {
    uint64_t rows = 0, rounded = 0;
  };
  Asked GetAsked() const { return {asked_->rows, asked_->rounded}; }

  // The same, while they are counted.
  struct Counters {
    std::atomic<uint64_t> rows{0}, rounded{0};
  };

 private:
  const ReadingModel& model_;
  std::unique_ptr<client::CacheClient> client_;
  const CheckedNamespace ns_;
  const std::vector<BlockKey> keys_;
  const std::unique_ptr<Counters> asked_ = std::make_unique<Counters>();
};

}  // namespace cairn::worker
