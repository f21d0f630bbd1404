#pragma once
// One read of blocks into the caller's memory.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/python/src/block_sink.h"
#include "clients/python/src/connection.h"
#include "clients/python/src/memory.h"

namespace cairn::python {

// Blocks that `into` has memory for: a list or tuple with the memory of each, or an array with a
// row for each. TypeError for anything else.
size_t CountOf(nanobind::handle into);

// Everything that a read needs while the GIL is not held. The caller holds the GIL when it makes,
// asks and destroys this object. The read ends early when the connection closes or `cancel` is
// triggered. One thread uses it at a time.
class Reading {
 public:
  // `rect`: None for all of each block. INVALID_ARGUMENT or TypeError, naming the field. `layout`
  // and `cancel` must outlive this.
  Reading(Connection& connection, const Layout& layout, nanobind::handle into, uint32_t first_block,
          nanobind::handle rect, const std::stop_source* cancel);

  client::FetchOptions Options(nanobind::handle progress, nanobind::handle deadline,
                               const std::string& trace) const;
  // The first `blocks` blocks of it.
  client::FetchRange Range(size_t blocks) const;
  BlockSink& sink() { return sink_; }

  // (code, message, prefix, bytes, {block: miss_reason}), `status` being the read's.
  nanobind::object Answer(const Status& status) const;

 private:
  struct Stop {
    std::stop_source* source;
    void operator()() const { source->request_stop(); }
  };

  std::vector<BlockSink::Block> Take(nanobind::handle into);

  const Layout& layout_;
  const uint32_t first_;
  const format::PartRect want_;
  std::vector<MemoryPieces> memory_;
  BlockSink sink_;
  std::stop_source stop_;
  const std::stop_callback<Stop> on_close_, on_cancel_;
};

}  // namespace cairn::python
