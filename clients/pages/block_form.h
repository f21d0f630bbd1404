#pragma once
// How a block of an engine becomes one run of bytes, its flat block, and back: as it is, or
// encoded.

#include <cstdint>
#include <memory>
#include <span>

#include "cairn/common/status.h"
#include "cairn/kernels/batch/slice_table.h"
#include "clients/pages/engine_pages.h"
#include "common/device/device.h"

namespace cairn::pages {

// Immutable and thread-safe. Its operations only launch work on the stream. After an error some of
// the work may have been launched.
class BlockForm {
 public:
  virtual ~BlockForm() = default;

  virtual uint32_t blocks() const = 0;  // The number of blocks that the engine has.
  // Bytes of a flat block, at most and at this position.
  virtual uint64_t flat_bytes() const = 0;
  virtual uint64_t BytesAt(uint64_t first_position) const {
    (void)first_position;
    return flat_bytes();
  }
  // Whether kernels read and write the flat blocks, which then must lie in the device's memory.
  // Else copies do, and pinned memory will do, too.
  virtual bool runs_kernels() const = 0;
  // Whether single blocks may be refused. Then 4 bytes behind the flat block, at the next multiple
  // of 16, are its word of faults (cairn/kernels/codec/slice_kernels.h). The caller sets it to 0
  // before, and what is wrong is in it afterwards.
  virtual bool has_faults() const { return false; }

  // From pages to flat blocks, and back. REQUIRES: blocks that the engine has; with kernels, flat
  // addresses at multiples of 16.
  virtual Status Gather(device::Stream* stream, std::span<const BlockCopy> blocks) const = 0;
  virtual Status Scatter(device::Stream* stream, std::span<const BlockCopy> blocks) const = 0;

  // Where the word of faults is, behind the address of a flat block.
  uint64_t fault_offset() const { return (flat_bytes() + 15) / 16 * 16; }
  // From one flat block to the next.
  uint64_t slot_bytes() const { return has_faults() ? fault_offset() + 16 : flat_bytes(); }
};

// Kernels for slices that the device's library carries. Null: it has none.
const kernels::batch::SliceTable* SliceKernelsOf(device::Device* device);

// Bytes as they are. Kernels move them, all layers in one launch, if there are kernels and a block
// has several runs, all of one size and equally far apart, that begin at multiples of 16 and have
// such a size. Else copies do. Errors: those of Validate. `kernels`: null, or outlives the form.
Result<std::unique_ptr<BlockForm>> OpaqueForm(EnginePages pages,
                                              const kernels::batch::SliceTable* kernels);

}  // namespace cairn::pages
