#include "clients/pages/chunk_loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/device/launched.h"
#include "common/log/log.h"

namespace cairn::pages {
namespace {

using device::CopyTask;
using kernels::HashRun;

}  // namespace

Result<std::unique_ptr<ChunkLoader>> ChunkLoader::Create(std::shared_ptr<device::Device> device,
                                                         const BlockForm& form,
                                                         const kernels::batch::SliceTable& kernels,
                                                         uint32_t slots,
                                                         device::EventPoller* poller,
                                                         Duration patience) {
  std::unique_ptr<ChunkLoader> loader(new ChunkLoader(device, form, kernels, poller, patience));
  MutexLock lock(loader->mu_);
  Result<device::DeviceMemory> staging = device->Allocate(slots * loader->stride_, false);
  for (; !staging.ok() && slots > 1; slots /= 2) {
    staging = device->Allocate(slots / 2 * loader->stride_, false);
  }
  CAIRN_ASSIGN_OR_RETURN(loader->staging_, std::move(staging));
  loader->slots_ = slots;
  CAIRN_ASSIGN_OR_RETURN(loader->faults_, device->AllocatePinned(slots * sizeof(uint32_t)));
  CAIRN_ASSIGN_OR_RETURN(loader->stream_, device->NewStream());
  return loader;
}

std::vector<ChunkLoader::Outcome> ChunkLoader::Load(const Fence& fence,
                                                    std::span<const Source> sources) {
  std::vector<Outcome> outcomes(sources.size(), Outcome::kUnread);
  std::vector<size_t> wanted;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].bytes == form_.BytesAt(sources[i].first_position)) wanted.push_back(i);
  }
  MutexLock lock(mu_);
  if (wanted.empty() || !Idle()) return outcomes;
  Status status = AwaitEngine(fence);
  for (size_t first = 0; first < wanted.size() && status.ok(); first += slots_) {
    const auto indices =
        std::span(wanted).subspan(first, std::min<size_t>(slots_, wanted.size() - first));
    std::vector<Source> batch;
    for (const size_t i : indices) batch.push_back(sources[i]);
    status = RunBatch(batch);
    if (!status.ok()) break;
    for (size_t i = 0; i < indices.size(); ++i) {
      uint32_t faults = 0;
      std::memcpy(&faults, faults_.bytes().data() + i * sizeof(faults), sizeof(faults));
      outcomes[indices[i]] = faults == 0 ? Outcome::kGood : Outcome::kWrong;
    }
  }
  if (!status.ok()) log::Warn("blocks_not_read_on_device", {{"error", ToString(status)}});
  return outcomes;
}

bool ChunkLoader::AwaitEnd() {
  MutexLock lock(mu_);
  if (Idle() || device_->lost()) return true;
  (void)AwaitStream("what was launched");
  return Idle() || device_->lost();
}

bool ChunkLoader::Idle() {
  if (unended_ == nullptr) return true;
  const auto result = unended_->result();
  if (!result || !result->ok()) return false;
  unended_.reset();
  return true;
}

Status ChunkLoader::AwaitEngine(const Fence& fence) {
  CAIRN_RETURN_IF_ERROR(stream_.Wait(fence.event_));
  return AwaitStream("the engine's work");
}

Status ChunkLoader::RunBatch(std::span<const Source> sources) {
  const Status issued = IssueBatch(sources);
  // Also after an error: what was issued is under way.
  const Status ended = AwaitStream("a batch of blocks");
  return issued.ok() ? ended : issued;
}

Status ChunkLoader::IssueBatch(std::span<const Source> sources) {
  std::vector<CopyTask> in, clear, out;
  std::vector<HashRun> runs;
  std::vector<BlockCopy> places;
  const auto faults = reinterpret_cast<uint64_t>(faults_.bytes().data());
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    const uint64_t staged = staging_.address() + i * stride_;
    const uint64_t word = staged + form_.fault_offset(), word_here = faults + i * sizeof(uint32_t);
    in.push_back({.to = staged, .from = source.address, .bytes = source.bytes});
    clear.push_back({.to = word, .from = word_here, .bytes = sizeof(uint32_t)});
    out.push_back({.to = word_here, .from = word, .bytes = sizeof(uint32_t)});
    runs.push_back({.in = reinterpret_cast<const std::byte*>(staged),
                    .bytes = source.bytes,
                    .faults = reinterpret_cast<uint32_t*>(word),
                    .expected = source.xxh3});
    places.push_back({source.block, staged, source.first_position});
  }
  std::memset(faults_.bytes().data(), 0, sources.size() * sizeof(uint32_t));
  CAIRN_RETURN_IF_ERROR(stream_.Copy("clearing of faults", clear));
  CAIRN_RETURN_IF_ERROR(stream_.Copy("copy out of a chunk", in));
  CAIRN_RETURN_IF_ERROR(device::Launched(
      "hashes of blocks",
      kernels_.hash_runs(stream_.native(), {runs.data(), static_cast<int64_t>(runs.size())}),
      *device_));
  CAIRN_RETURN_IF_ERROR(form_.Scatter(&stream_, places));
  return stream_.Copy("faults of blocks", out);
}

Status ChunkLoader::AwaitStream(const char* what) {
  const auto transfer = std::make_shared<Transfer>();
  unended_ = transfer;
  CAIRN_ASSIGN_OR_RETURN(device::Event end, device_->NewEvent());
  CAIRN_RETURN_IF_ERROR(stream_.Record(end));
  poller_.Watch(std::move(end), [transfer](const Status& happened) { transfer->Finish(happened); });
  if (!transfer->Await(std::chrono::steady_clock::now() + patience_)) {
    return Errorf(StatusCode::kDeadlineExceeded, "device {}: {} did not end within {:.1f}s",
                  device_->info().ordinal, what, Seconds(patience_));
  }
  // A lost device does nothing any more.
  if (transfer->result()->ok() || device_->lost()) unended_.reset();
  return *transfer->result();
}

}  // namespace cairn::pages
