#include "services/worker/compute/device/kv_uploads.h"

#include <algorithm>
#include <cstring>

#include "services/worker/compute/device/device_wait.h"

namespace cairn::worker {
namespace {

constexpr size_t kHalfBytes = 4 << 20;

}  // namespace

Result<std::unique_ptr<KvUploads>> KvUploads::Create(const std::shared_ptr<device::Device>& device,
                                                     size_t most_bytes) {
  std::unique_ptr<KvUploads> uploads(new KvUploads);
  CAIRN_ASSIGN_OR_RETURN(uploads->stream_, device->NewStream());
  CAIRN_ASSIGN_OR_RETURN(uploads->drained_, device->NewEvent());
  for (Half& half : uploads->halves_) {
    CAIRN_ASSIGN_OR_RETURN(half.memory, device->AllocatePinned(std::max(kHalfBytes, most_bytes)));
    CAIRN_ASSIGN_OR_RETURN(half.sent, device->NewEvent());
  }
  return uploads;
}

Status KvUploads::Add(uint64_t to, const std::byte* from, size_t bytes) {
  if (current().used + bytes > current().memory.bytes().size()) CAIRN_RETURN_IF_ERROR(Send());
  if (current().under_way) {
    CAIRN_RETURN_IF_ERROR(Await(current().sent, "upload of earlier KV"));
    current().under_way = false;
  }
  std::byte* const place = current().memory.bytes().data() + current().used;
  std::memcpy(place, from, bytes);
  current().tasks.push_back({to, reinterpret_cast<uint64_t>(place), bytes});
  current().used += bytes;
  added_ = true;
  return OkStatus();
}

Status KvUploads::Send() {
  Half& half = current();
  if (half.tasks.empty()) return OkStatus();
  CAIRN_RETURN_IF_ERROR(stream_.Copy("upload of earlier KV", half.tasks));
  CAIRN_RETURN_IF_ERROR(stream_.Record(half.sent));
  half.tasks.clear();
  half.used = 0;
  half.under_way = true;
  current_ = 1 - current_;
  return OkStatus();
}

Status KvUploads::OrderBefore(device::Stream* stream) {
  if (!added_) return OkStatus();
  CAIRN_RETURN_IF_ERROR(Send());
  added_ = false;
  return stream->Wait(halves_[1 - current_].sent);
}

Status KvUploads::Drain() {
  for (Half& half : halves_) {
    half.tasks.clear();
    half.used = 0;
  }
  added_ = false;
  CAIRN_RETURN_IF_ERROR(stream_.Record(drained_));
  return Await(drained_, "the end of uploads");
}

}  // namespace cairn::worker
