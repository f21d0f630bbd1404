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

#include "clients/pages/page_mover.h"
#include "common/device/event_poller.h"

namespace cairn::python {

// The callers hold the GIL. Those that wait release it meanwhile.
class PageMoves {
 public:
  // (address, stride, bytes).
  using Run = std::tuple<uint64_t, uint64_t, uint64_t>;
  using Slots = std::vector<uint32_t>;

  // `library`: as device::Driver::Load. Throws its errors, Device's and PageMover's. A device that
  // the driver does not have is INVALID_ARGUMENT and names those that there are.
  static std::unique_ptr<PageMoves> Open(const std::string& library, uint32_t device,
                                         const std::vector<Run>& runs, uint32_t blocks,
                                         uint32_t save_slots, uint32_t load_slots);
  ~PageMoves() { Close(); }

  uint32_t save_slots() const { return save_slots_; }
  uint32_t load_slots() const { return load_slots_; }
  // The engine's thread calls these. They keep the GIL: they do not wait, and to get it back can
  // take longer than they do.
  std::pair<std::shared_ptr<pages::Transfer>, Slots> Save(uint64_t stream, const Slots& blocks);
  std::unique_ptr<pages::Fence> MakeFence(uint64_t stream);

  // The address of a slot's bytes.
  uint64_t SaveSlot(uint32_t slot);
  uint64_t LoadSlot(uint32_t slot);
  void GiveBackSaveSlots(const Slots& slots);
  Slots AwaitLoadSlots(size_t most, double seconds);
  std::shared_ptr<pages::Transfer> Load(const pages::Fence& fence, const Slots& slots,
                                        const Slots& blocks);
  void GiveBackLoadSlots(const Slots& slots);

  // Waits for the copies under way. REQUIRES: no other call is running. Later calls fail with
  // FAILED_PRECONDITION. May be repeated.
  void Close();

 private:
  PageMoves();
  pages::PageMover& mover();

  device::EventPoller poller_;
  std::unique_ptr<device::PollingThread> thread_;
  std::unique_ptr<pages::PageMover> mover_;
  uint32_t save_slots_ = 0, load_slots_ = 0;
};

// Waits without the GIL. False: it is still under way after so many seconds.
bool AwaitTransfer(const pages::Transfer& transfer, double seconds);
// None: it ended well, or has not ended. Else (code, message).
std::optional<std::pair<int, std::string>> TransferError(const pages::Transfer& transfer);

}  // namespace cairn::python
