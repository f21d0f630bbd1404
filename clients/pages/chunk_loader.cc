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

constexpr Duration kLongWait = std::chrono::seconds(1);

}  // namespace

Result<std::unique_ptr<ChunkLoader>> ChunkLoader::Create(std::shared_ptr<device::Device> device,
                                                         const BlockForm& form,
                                                         const kernels::batch::SliceTable& kernels,
                                                         uint32_t slots,
                                                         device::EventPoller* poller) {
  std::unique_ptr<ChunkLoader> loader(new ChunkLoader(device, form, kernels, poller));
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

ChunkLoader::~ChunkLoader() {
  MutexLock lock(mu_);
  if (stuck_ && !device_->lost()) (void)AwaitStream();
}

std::vector<ChunkLoader::Outcome> ChunkLoader::Load(const Fence& fence,
                                                    std::span<const Source> sources) {
  std::vector<Outcome> outcomes(sources.size(), Outcome::kUnread);
  std::vector<size_t> wanted;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].bytes == form_.BytesAt(sources[i].first_position)) wanted.push_back(i);
  }
  MutexLock lock(mu_);
  for (size_t first = 0; first < wanted.size() && !stuck_; first += slots_) {
    const auto indices =
        std::span(wanted).subspan(first, std::min<size_t>(slots_, wanted.size() - first));
    std::vector<Source> batch;
    for (const size_t i : indices) batch.push_back(sources[i]);
    if (const Status ran = RunBatch(fence, batch); !ran.ok()) {
      log::Warn("blocks_not_read_on_device", {{"error", ToString(ran)}});
      break;
    }
    for (size_t i = 0; i < indices.size(); ++i) {
      uint32_t faults = 0;
      std::memcpy(&faults, faults_.bytes().data() + i * sizeof(faults), sizeof(faults));
      outcomes[indices[i]] = faults == 0 ? Outcome::kGood : Outcome::kWrong;
    }
  }
  return outcomes;
}

Status ChunkLoader::RunBatch(const Fence& fence, std::span<const Source> sources) {
  const Status issued = IssueBatch(fence, sources);
  // Also after an error: what was issued is under way.
  const Status ended = AwaitStream();
  stuck_ = !ended.ok() && !device_->lost();
  return issued.ok() ? ended : issued;
}

Status ChunkLoader::IssueBatch(const Fence& fence, std::span<const Source> sources) {
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
  CAIRN_RETURN_IF_ERROR(stream_.Wait(fence.event_));
  CAIRN_RETURN_IF_ERROR(form_.Scatter(&stream_, places));
  return stream_.Copy("faults of blocks", out);
}

Status ChunkLoader::AwaitStream() {
  CAIRN_ASSIGN_OR_RETURN(device::Event end, device_->NewEvent());
  CAIRN_RETURN_IF_ERROR(stream_.Record(end));
  const auto transfer = std::make_shared<Transfer>();
  poller_.Watch(std::move(end), [transfer](const Status& happened) { transfer->Finish(happened); });
  while (!transfer->Await(std::chrono::steady_clock::now() + kLongWait)) {
  }
  return *transfer->result();
}

}  // namespace cairn::pages
