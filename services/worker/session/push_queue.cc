#include "services/worker/session/push_queue.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cairn/client/cache_client.h"
#include "services/common/format/part.h"
#include "services/common/log/log.h"

namespace cairn::worker {
namespace {

void LowerPriority(int niceness) {
  // Linux: the priority of one thread. Without permission it stays as it is, which only costs speed.
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  if (setpriority(PRIO_PROCESS, thread, niceness) != 0) {
    log::Debug("push_thread_priority_unchanged");
  }
}

}  // namespace

// Buffers of sealed parts, used again when the network has let go of them: fresh memory for each part
// would cost more page faults than the copy itself.
class PushQueue::PartBuffers {
 public:
  using Buffer = std::shared_ptr<std::vector<std::byte>>;

  Buffer Take(size_t bytes) {
    for (const Buffer& buffer : buffers_) {
      if (buffer.use_count() == 1) {
        buffer->resize(bytes);
        return buffer;
      }
    }
    buffers_.push_back(std::make_shared<std::vector<std::byte>>(bytes));
    return buffers_.back();
  }
  void Clear() { buffers_.clear(); }

 private:
  std::vector<Buffer> buffers_;
};

PushQueue::PushQueue(client::CacheClient& client, const Layout& layout, const Options& options)
    : client_(client), options_(options), layout_(layout), thread_([this] { Run(); }) {}

PushQueue::~PushQueue() { Stop(TimePoint{}); }

void PushQueue::Enqueue(const Digest& fingerprint, std::vector<ComputedBlock> blocks) {
  MutexLock lock(mu_);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t bytes = blocks[i].page.size();
    if (stopping_ || queue_.size() >= options_.max_blocks ||
        queued_bytes_ + bytes > options_.max_bytes) {
      totals_.dropped_blocks += blocks.size() - i;
      break;
    }
    queued_bytes_ += bytes;
    queue_.push_back({fingerprint, std::move(blocks[i])});
  }
  changed_.NotifyAll();
}

void PushQueue::Pause() {
  MutexLock lock(mu_);
  ++pauses_;
}

void PushQueue::Resume() {
  MutexLock lock(mu_);
  --pauses_;
  changed_.NotifyAll();
}

void PushQueue::DropQueued() {
  totals_.dropped_blocks += queue_.size();
  queue_.clear();
  queued_bytes_ = 0;
}

void PushQueue::DropPending() {
  MutexLock lock(mu_);
  DropQueued();
  changed_.NotifyAll();
  changed_.Wait(mu_, [&] { return !copying_; });
}

bool PushQueue::WaitEmpty(TimePoint deadline) {
  MutexLock lock(mu_);
  return changed_.WaitUntil(mu_, deadline, [&] { return queue_.empty() && sending_blocks_ == 0; });
}

void PushQueue::Stop(TimePoint deadline) {
  WaitEmpty(deadline);
  {
    MutexLock lock(mu_);
    stopping_ = true;
    DropQueued();
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

PushQueue::Stats PushQueue::GetStats() const {
  MutexLock lock(mu_);
  Stats stats = totals_;
  stats.queued_blocks = queue_.size() + sending_blocks_;
  stats.queued_bytes = queued_bytes_;
  return stats;
}

std::vector<PushQueue::Item> PushQueue::TakeBatch() {
  std::vector<Item> batch;
  while (!queue_.empty() && batch.size() < options_.batch_blocks &&
         (batch.empty() || queue_.front().fingerprint == batch.front().fingerprint)) {
    queued_bytes_ -= queue_.front().block.page.size();
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return batch;
}

void PushQueue::Run() {
  LowerPriority(options_.niceness);
  PartBuffers buffers;
  while (true) {
    std::vector<Item> batch;
    {
      MutexLock lock(mu_);
      changed_.Wait(mu_, [&] { return stopping_ || (pauses_ == 0 && !queue_.empty()); });
      if (stopping_) return;
      batch = TakeBatch();
      sending_blocks_ = static_cast<uint32_t>(batch.size());
      copying_ = true;
    }
    const std::vector<client::PartToPush> parts = Seal(batch, buffers);
    for (Item& item : batch) item.block.hold.reset();
    {
      MutexLock lock(mu_);
      copying_ = false;
      changed_.NotifyAll();
    }
    const Stats sent = Send(batch, parts);
    MutexLock lock(mu_);
    totals_.pushed_blocks += sent.pushed_blocks;
    totals_.pushed_bytes += sent.pushed_bytes;
    totals_.failed_blocks += sent.failed_blocks;
    sending_blocks_ = 0;
    if (queue_.empty()) buffers.Clear();
    changed_.NotifyAll();
  }
}

std::vector<client::PartToPush> PushQueue::Seal(const std::vector<Item>& batch,
                                                PartBuffers& buffers) const {
  const format::PartRect rect = layout_.WholeRect();
  std::vector<uint64_t> lengths;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    lengths.push_back(layout_.SliceBytes(layer, rect.head_begin, rect.head_end));
  }
  const size_t part_bytes = format::PartBytes(lengths);
  const size_t header_bytes = format::HeaderBytes(static_cast<uint32_t>(lengths.size()));

  std::vector<client::PartToPush> parts;
  parts.reserve(batch.size());
  for (const Item& item : batch) {
    CAIRN_CHECK(header_bytes + item.block.page.size() == part_bytes);
    const PartBuffers::Buffer buffer = buffers.Take(part_bytes);
    // Layer by layer, so that the hash finds the slice in the processor's cache.
    std::vector<uint64_t> hashes;
    hashes.reserve(lengths.size());
    size_t offset = 0;
    for (const uint64_t length : lengths) {
      std::byte* slice = buffer->data() + header_bytes + offset;
      std::memcpy(slice, item.block.page.data() + offset, length);
      hashes.push_back(Xxh3({slice, length}));
      offset += length;
    }
    format::WriteHeader(std::span(*buffer).first(header_bytes), format::Codec::kRaw, rect,
                        static_cast<uint16_t>(layout_.block_tokens), lengths, hashes);
    client::PartToPush part;
    part.key = item.block.key;
    part.parent = item.block.parent;
    part.first_position = item.block.first_position;
    part.rect = rect;
    part.bytes = *buffer;
    part.hold = buffer;
    part.compute_seconds = item.block.compute_seconds;
    parts.push_back(std::move(part));
  }
  return parts;
}

PushQueue::Stats PushQueue::Send(const std::vector<Item>& batch,
                                 std::span<const client::PartToPush> parts) {
  client::PushOptions push;
  push.deadline = options_.push_deadline;
  push.trace = batch.front().block.trace;
  const auto results = client_.Push(batch.front().fingerprint, parts, push);
  Stats sent;
  Status failure = results.status();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (results.ok() && (*results)[i].ok()) {
      ++sent.pushed_blocks;
      sent.pushed_bytes += parts[i].bytes.size();
    } else {
      ++sent.failed_blocks;
      if (results.ok() && failure.ok()) failure = (*results)[i];
    }
  }
  if (sent.failed_blocks > 0) {
    log::Debug("cache_push_failed", {{"trace", push.trace},
                                     {"blocks", log::Num(sent.failed_blocks)},
                                     {"error", ToString(failure)}});
  }
  return sent;
}

}  // namespace cairn::worker
