#include "clients/python/src/page_moves.h"

#include <algorithm>
#include <chrono>

#include "clients/python/src/released_gil.h"
#include "clients/python/src/status_error.h"
#include "common/device/driver.h"
#include "common/log/log.h"

namespace cairn::python {
namespace {

constexpr Duration kPollInterval = std::chrono::microseconds(50);
constexpr double kLongest = 1e9;  // Seconds.
constexpr uint64_t kChunkStaging = 16 << 20;

TimePoint Until(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<Duration>(
             std::chrono::duration<double>(std::clamp(seconds, 0.0, kLongest)));
}

pages::BlockShape ToShape(const PageMoves::Shape& shape) {
  const auto& [layers, heads, k_dim, v_dim, tokens] = shape;
  return {.layers = layers, .heads = heads, .k_dim = k_dim, .v_dim = v_dim, .tokens = tokens};
}

void* Native(uint64_t stream) { return reinterpret_cast<void*>(stream); }

}  // namespace

PageMoves::PageMoves()
    : thread_(std::make_unique<device::PollingThread>(&poller_, kPollInterval)) {}

template <typename MakeForm>
std::unique_ptr<PageMoves> PageMoves::OpenWith(const Where& where, MakeForm form) {
  const auto& [library, device, save_slots, load_slots] = where;
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
  const std::shared_ptr<device::Device> opened = ValueOrThrow(driver->Open(device));
  moves->mover_ = ValueOrThrow(pages::PageMover::Create(
      opened, ValueOrThrow(form(opened.get())),
      {.save_slots = save_slots, .load_slots = load_slots}, &moves->poller_));
  moves->save_slots_ = moves->mover_->save_slots();
  moves->load_slots_ = moves->mover_->load_slots();
  const auto* const kernels = pages::SliceKernelsOf(opened.get());
  if (kernels == nullptr || !opened->info().exports) return moves;
  const pages::BlockForm& blocks = moves->mover_->form();
  auto chunks = pages::ChunkLoader::Create(
      opened, blocks, *kernels,
      static_cast<uint32_t>(std::max<uint64_t>(1, kChunkStaging / blocks.slot_bytes())),
      &moves->poller_);
  if (chunks.ok()) {
    moves->chunks_ = *std::move(chunks);
  } else {
    log::Info("no_reads_of_chunks", {{"reason", Message(chunks.status())}});
  }
  return moves;
}

std::unique_ptr<PageMoves> PageMoves::Open(const Where& where, const std::vector<Run>& runs,
                                           uint32_t blocks) {
  pages::EnginePages engine{{}, blocks};
  for (const auto& [address, stride, bytes] : runs) engine.runs.push_back({address, stride, bytes});
  ThrowIfError(pages::Validate(engine));
  return OpenWith(where, [&](device::Device* device) {
    return pages::OpaqueForm(std::move(engine), pages::SliceKernelsOf(device));
  });
}

std::unique_ptr<PageMoves> PageMoves::OpenCoded(const Where& where, const std::string& codec,
                                                const Shape& shape,
                                                const std::vector<Layer>& layers, uint32_t blocks,
                                                const Strides& k, const Strides& v, bool bfloat16) {
  const auto checked = ValueOrThrow(pages::BlockCodec::Create(codec, ToShape(shape)));
  pages::CodedPages engine = {.layers = {},
                              .blocks = blocks,
                              .k = {k.first, k.second},
                              .v = {v.first, v.second},
                              .bfloat16 = bfloat16};
  for (const auto& [keys, values, stride] : layers) {
    engine.layers.push_back({keys, values, stride});
  }
  return OpenWith(where, [&](device::Device* device) -> Result<std::unique_ptr<pages::BlockForm>> {
    const auto* const kernels = pages::SliceKernelsOf(device);
    if (kernels == nullptr) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "codec '{}': the library of devices has no kernels for it",
                    checked.canonical());
    }
    return pages::CodedForm(checked, std::move(engine), *kernels);
  });
}

std::pair<std::string, uint64_t> CodedBlock(const std::string& codec,
                                            const PageMoves::Shape& shape) {
  const auto checked = ValueOrThrow(pages::BlockCodec::Create(codec, ToShape(shape)));
  return {checked.canonical(), checked.MostBytes()};
}

pages::PageMover& PageMoves::mover() {
  if (mover_ == nullptr) {
    throw StatusError(Errorf(StatusCode::kFailedPrecondition, "pages: they are closed"));
  }
  return *mover_;
}

std::pair<std::shared_ptr<pages::Transfer>, PageMoves::Slots> PageMoves::Save(
    uint64_t stream, const Slots& blocks, const Positions& positions) {
  auto save = ValueOrThrow(mover().SaveBlocks(Native(stream), blocks, positions));
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
                                                 const Slots& blocks, const Positions& positions) {
  pages::PageMover& mover = this->mover();
  const ReleasedGil released;
  return ValueOrThrow(mover.LoadBlocks(fence, slots, blocks, positions));
}

void PageMoves::GiveBackLoadSlots(const Slots& slots) { mover().GiveBackLoadSlots(slots); }

std::unique_ptr<DeviceBlocks> PageMoves::OnDevice(const pages::Fence& fence, const Slots& blocks,
                                                  const Positions& positions) {
  if (chunks_ == nullptr) {
    throw StatusError(Errorf(StatusCode::kFailedPrecondition, "pages: no chunks can be read"));
  }
  ThrowIfError(mover().CheckBlocks(blocks, positions));
  if (positions.size() != blocks.size()) {
    throw StatusError(
        InvalidArgument("field 'positions': got {}, expected {}", positions.size(), blocks.size()));
  }
  return std::make_unique<DeviceBlocks>(chunks_.get(), fence, blocks, positions);
}

void PageMoves::Close() {
  auto mover = std::move(mover_);
  auto chunks = std::move(chunks_);
  const ReleasedGil released;
  const TimePoint until = std::chrono::steady_clock::now() + pages::ChunkLoader::kPatience;
  const bool ended =
      (chunks == nullptr || chunks->AwaitEnd()) && (mover == nullptr || mover->AwaitEnd(until));
  if (!ended) {
    // The process ends all the same: what the device may still write is left to the system.
    log::Error("device_does_not_answer", {{"left", "pinned memory and staging"}});
    (void)chunks.release();
    (void)mover.release();
  }
  chunks.reset();
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
