#include "clients/python/src/page_moves.h"

#include <algorithm>
#include <chrono>

#include "clients/python/src/released_gil.h"
#include "clients/python/src/status_error.h"
#include "common/device/driver.h"

namespace cairn::python {
namespace {

constexpr Duration kPollInterval = std::chrono::microseconds(50);
constexpr double kLongest = 1e9;  // Seconds.

TimePoint Until(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<Duration>(
             std::chrono::duration<double>(std::clamp(seconds, 0.0, kLongest)));
}

void* Native(uint64_t stream) { return reinterpret_cast<void*>(stream); }

}  // namespace

PageMoves::PageMoves()
    : thread_(std::make_unique<device::PollingThread>(&poller_, kPollInterval)) {}

std::unique_ptr<PageMoves> PageMoves::Open(const std::string& library, uint32_t device,
                                           const std::vector<Run>& runs, uint32_t blocks,
                                           uint32_t save_slots, uint32_t load_slots) {
  pages::EnginePages engine{{}, blocks};
  for (const auto& [address, stride, bytes] : runs) engine.runs.push_back({address, stride, bytes});
  ThrowIfError(pages::Validate(engine));
  // Before the GIL is released: if this fails, it ends with the GIL held again.
  std::unique_ptr<PageMoves> moves(new PageMoves);
  const ReleasedGil released;
  const auto driver = ValueOrThrow(device::Driver::Load(library));
  if (device >= driver->devices().size()) {
    throw StatusError(
        InvalidArgument("field 'device': got {}, expected less than {}, the devices "
                        "of the {} driver",
                        device, driver->devices().size(), driver->name()));
  }
  moves->mover_ = ValueOrThrow(pages::PageMover::Create(
      ValueOrThrow(driver->Open(device)), std::move(engine),
      {.save_slots = save_slots, .load_slots = load_slots}, &moves->poller_));
  moves->save_slots_ = moves->mover_->save_slots();
  moves->load_slots_ = moves->mover_->load_slots();
  return moves;
}

pages::PageMover& PageMoves::mover() {
  if (mover_ == nullptr) {
    throw StatusError(Errorf(StatusCode::kFailedPrecondition, "pages: they are closed"));
  }
  return *mover_;
}

std::pair<std::shared_ptr<pages::Transfer>, PageMoves::Slots> PageMoves::Save(uint64_t stream,
                                                                              const Slots& blocks) {
  auto save = ValueOrThrow(mover().SaveBlocks(Native(stream), blocks));
  return {std::move(save.transfer), std::move(save.slots)};
}

std::unique_ptr<pages::Fence> PageMoves::MakeFence(uint64_t stream) {
  return ValueOrThrow(mover().MakeFence(Native(stream)));
}

uint64_t PageMoves::SaveSlot(uint32_t slot) {
  return reinterpret_cast<uint64_t>(mover().save_slot(slot).data());
}

uint64_t PageMoves::LoadSlot(uint32_t slot) {
  return reinterpret_cast<uint64_t>(mover().load_slot(slot).data());
}

void PageMoves::GiveBackSaveSlots(const Slots& slots) { mover().GiveBackSaveSlots(slots); }

PageMoves::Slots PageMoves::AwaitLoadSlots(size_t most, double seconds) {
  pages::PageMover& mover = this->mover();
  const ReleasedGil released;
  return mover.AwaitLoadSlots(most, Until(seconds));
}

std::shared_ptr<pages::Transfer> PageMoves::Load(const pages::Fence& fence, const Slots& slots,
                                                 const Slots& blocks) {
  pages::PageMover& mover = this->mover();
  const ReleasedGil released;
  return ValueOrThrow(mover.LoadBlocks(fence, slots, blocks));
}

void PageMoves::GiveBackLoadSlots(const Slots& slots) { mover().GiveBackLoadSlots(slots); }

void PageMoves::Close() {
  auto mover = std::move(mover_);
  const ReleasedGil released;
  mover.reset();
  thread_.reset();
}

bool AwaitTransfer(const pages::Transfer& transfer, double seconds) {
  const ReleasedGil released;
  return transfer.Await(Until(seconds));
}

std::optional<std::pair<int, std::string>> TransferError(const pages::Transfer& transfer) {
  const auto result = transfer.result();
  if (!result || result->ok()) return std::nullopt;
  return std::pair(static_cast<int>(result->code()), std::string(Message(*result)));
}

}  // namespace cairn::python
