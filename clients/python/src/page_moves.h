#pragma once
// An engine's pages on a device, for Python: pages::PageMover with a thread that asks for its
// events. cairn/vllm/device_pages.py is the user.

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "clients/pages/chunk_loader.h"
#include "clients/pages/coded_form.h"
#include "clients/pages/page_mover.h"
#include "clients/python/src/device_blocks.h"
#include "common/device/event_poller.h"

namespace cairn::python {

// The callers hold the GIL. Those that wait release it meanwhile.
class PageMoves {
 public:
  // (address, stride, bytes).
  using Run = std::tuple<uint64_t, uint64_t, uint64_t>;
  using Slots = std::vector<uint32_t>;
  using Positions = std::vector<uint64_t>;
  // (library, device, save slots, load slots). The library is as for device::Driver::Load.
  using Where = std::tuple<std::string, uint32_t, uint32_t, uint32_t>;
  // (layers, heads, dimensions of keys and of values, tokens), as pages::BlockShape.
  using Shape = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;
  // (keys' address, values' address, bytes between blocks), as pages::CodedLayer.
  using Layer = std::tuple<uint64_t, uint64_t, uint64_t>;
  // (between heads, between tokens), in numbers.
  using Strides = std::pair<int64_t, int64_t>;

  // Pages whose bytes are stored as they are. Throws the errors of Driver::Load, of Device and of
  // PageMover. A device that the driver does not have is INVALID_ARGUMENT and names those that
  // there are.
  static std::unique_ptr<PageMoves> Open(const Where& where, const std::vector<Run>& runs,
                                         uint32_t blocks);
  // Pages that are stored in a codec. Throws also the errors of BlockCodec and CodedForm, and
  // FAILED_PRECONDITION if the library has no kernels.
  static std::unique_ptr<PageMoves> OpenCoded(const Where& where, const std::string& codec,
                                              const Shape& shape, const std::vector<Layer>& layers,
                                              uint32_t blocks, const Strides& k, const Strides& v,
                                              bool bfloat16);
  ~PageMoves() { Close(); }

  uint32_t save_slots() const { return save_slots_; }
  uint32_t load_slots() const { return load_slots_; }
  // The bytes of a block as it is stored.
  uint64_t BlockBytes(uint64_t first_position) { return mover().form().BytesAt(first_position); }
  bool RunsKernels() { return mover().form().runs_kernels(); }
  // The engine's thread calls these. They keep the GIL: they do not wait, and to get it back can
  // take longer than they do.
  std::pair<std::shared_ptr<pages::Transfer>, Slots> Save(uint64_t stream, const Slots& blocks,
                                                          const Positions& positions);
  std::unique_ptr<pages::Fence> MakeFence(uint64_t stream);

  // The address of a slot's bytes.
  uint64_t SaveSlot(uint32_t slot);
  uint64_t LoadSlot(uint32_t slot);
  void GiveBackSaveSlots(const Slots& slots);
  Slots AwaitLoadSlots(size_t most, double seconds);
  std::shared_ptr<pages::Transfer> Load(const pages::Fence& fence, const Slots& slots,
                                        const Slots& blocks, const Positions& positions);
  void GiveBackLoadSlots(const Slots& slots);

  // Whether blocks can be read in a node's device tier: the GPU's memory can be shared, and there
  // are kernels that verify them.
  bool ReadsChunks() const { return chunks_ != nullptr; }
  // For a fetch of blocks that go to these of the engine. OUT_OF_RANGE: one that it does not have;
  // FAILED_PRECONDITION without ReadsChunks. This object and the fence outlive it.
  std::unique_ptr<DeviceBlocks> OnDevice(const pages::Fence& fence, const Slots& blocks,
                                         const Positions& positions);

  // Waits for the copies under way, as long as the patience of ChunkLoader lasts. REQUIRES: no
  // other call is running. Later calls fail with FAILED_PRECONDITION. May be repeated.
  void Close();

 private:
  PageMoves();
  // `form`: of the device that was opened.
  template <typename MakeForm>
  static std::unique_ptr<PageMoves> OpenWith(const Where& where, MakeForm form);
  pages::PageMover& mover();

  device::EventPoller poller_;
  std::unique_ptr<device::PollingThread> thread_;
  std::unique_ptr<pages::PageMover> mover_;
  std::unique_ptr<pages::ChunkLoader> chunks_;  // Uses the mover's form.
  uint32_t save_slots_ = 0, load_slots_ = 0;
};

// (canonical codec, bytes of a block at most). Throws BlockCodec's errors.
std::pair<std::string, uint64_t> CodedBlock(const std::string& codec,
                                            const PageMoves::Shape& shape);

// Waits without the GIL. False: it is still under way after this many seconds.
bool AwaitTransfer(const pages::Transfer& transfer, double seconds);
// None: it ended well, or has not ended. Else (code, message).
std::optional<std::pair<int, std::string>> TransferError(const pages::Transfer& transfer);

}  // namespace cairn::python
