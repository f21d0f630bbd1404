#include "services/worker/session/push_queue.h"

#include <algorithm>
#include <utility>

#include "cairn/client/cache_client.h"
#include "cairn/common/hash.h"
#include "cairn/common/part.h"
#include "cairn/common/seal_copy.h"
#include "common/log/log.h"

namespace cairn::worker {
namespace {

// The description of a block for the node, whichever way it is pushed: all but the part's bytes.
// `Part`: client::PartToWrite or PartToPush.
template <typename Part>
Part Describe(const ComputedBlock& block, const Layout& layout) {
  Part part;
  part.key = block.key;
  part.parent = block.parent;
  part.first_position = block.first_position;
  part.rect = layout.WholeRect();
  part.compute_seconds = block.compute_seconds;
  return part;
}

uint64_t BytesOf(const client::PartToWrite& part) { return part.bytes; }
uint64_t BytesOf(const client::PartToPush& part) { return part.bytes.size(); }

std::vector<uint64_t> LayerBytes(const Layout& layout) {
  std::vector<uint64_t> bytes;
  for (uint32_t layer = 0; layer < layout.Layers(); ++layer) {
    bytes.push_back(layout.SliceBytes(layer, 0, layout.KvHeads()));
  }
  return bytes;
}

}  // namespace

PushQueue::PushQueue(client::CacheClient& client, const Layout& layout, const Clock& clock,
                     const Options& options, PageEncoder* encoder, Wakeup* wakeup)
    : client_(client),
      clock_(clock),
      options_(options),
      layout_(layout),
      layer_bytes_(LayerBytes(layout)),
      encoder_(encoder),
      wakeup_(wakeup) {}

PushQueue::~PushQueue() { Stop(TimePoint{}); }

void PushQueue::Enqueue(const Digest& fingerprint, const KvCodec& codec,
                        std::vector<ComputedBlock> blocks) {
  MutexLock lock(mu_);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint64_t bytes = blocks[i].bytes();
    if (stopping_ || queue_.size() >= options_.max_blocks ||
        queued_bytes_ + bytes > options_.max_bytes) {
      totals_.dropped_blocks += blocks.size() - i;
      break;
    }
    queued_bytes_ += bytes;
    queue_.push_back({fingerprint, &codec, std::move(blocks[i])});
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
  // The batch that waits for its room at the node: nobody reads its pages yet.
  totals_.dropped_blocks += reserving_.size();
  reserving_.clear();
  changed_.NotifyAll();
  changed_.Wait(mu_, clock_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !copying_; });
}

bool PushQueue::WaitEmpty(TimePoint deadline) {
  MutexLock lock(mu_);
  return changed_.WaitUntil(mu_, clock_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return queue_.empty() && sending_blocks_ == 0;
  });
}

void PushQueue::Stop(TimePoint deadline) {
  WaitEmpty(deadline);
  MutexLock lock(mu_);
  stopping_ = true;
  DropQueued();
  changed_.NotifyAll();
  changed_.Wait(mu_, clock_,
                [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return sending_blocks_ == 0; });
}

PushQueue::Stats PushQueue::GetStats() const {
  MutexLock lock(mu_);
  Stats stats = totals_;
  stats.queued_blocks = queue_.size() + sending_blocks_;
  stats.queued_bytes = queued_bytes_;
  return stats;
}

Status PushQueue::last_failure() const {
  MutexLock lock(mu_);
  return last_failure_;
}

template <typename Part>
PushQueue::Stats PushQueue::Tally(const std::vector<Part>& parts,
                                  const Result<std::vector<Status>>& results,
                                  const std::string& trace) {
  Stats sent;
  Status failure;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Status& status = results.ok() ? (*results)[i] : results.status();
    if (status.ok()) {
      ++sent.pushed_blocks;
      sent.pushed_bytes += BytesOf(parts[i]);
    } else {
      ++sent.failed_blocks;
      if (failure.ok()) failure = status;
    }
  }
  if (failure.ok()) return sent;
  log::Debug(
      "cache_push_failed",
      {{"trace", trace}, {"blocks", log::Num(sent.failed_blocks)}, {"error", ToString(failure)}});
  MutexLock lock(mu_);
  last_failure_ = failure;
  return sent;
}

void PushQueue::NotifyPushed() {
  changed_.NotifyAll();
  if (wakeup_ != nullptr) wakeup_->Notify();
}

std::vector<PushQueue::Item> PushQueue::TakeBatch() {
  std::vector<Item> batch;
  while (!queue_.empty() && batch.size() < options_.batch_blocks &&
         (batch.empty() || queue_.front().fingerprint == batch.front().fingerprint)) {
    queued_bytes_ -= queue_.front().block.bytes();
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return batch;
}

void PushQueue::Run() {
  while (true) {
    {
      MutexLock lock(mu_);
      changed_.Wait(mu_, clock_,
                    [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || HasWork(); });
      if (stopping_) return;
    }
    RunOnce();
  }
}

bool PushQueue::RunOnce() {
  Batch batch;
  std::vector<Item> to_encode;
  bool in_place = false;
  {
    MutexLock lock(mu_);
    if (!HasWork()) return false;
    reserving_ = TakeBatch();
    sending_blocks_ = static_cast<uint32_t>(reserving_.size());
    in_place = reserving_.front().codec->raw() && !reserving_.front().codec->selected();
    if (in_place) {
      batch = BatchOf(reserving_);
    } else {
      to_encode = std::exchange(reserving_, {});
      copying_ = true;
    }
  }
  const Stats sent = in_place ? Push(batch) : PushEncoded(std::move(to_encode));
  MutexLock lock(mu_);
  totals_ += sent;
  reserving_.clear();
  sending_blocks_ = 0;
  NotifyPushed();
  return true;
}

PushQueue::Batch PushQueue::BatchOf(const std::vector<Item>& items) const {
  Batch batch;
  batch.fingerprint = items.front().fingerprint;
  batch.trace = items.front().block.trace;
  for (const Item& item : items) {
    auto part = Describe<client::PartToWrite>(item.block, layout_);
    part.bytes = format::PartBytes(layer_bytes_);
    batch.parts.push_back(std::move(part));
    batch.promises.push_back(item.block.promise);
  }
  return batch;
}

PushQueue::Stats PushQueue::Push(const Batch& batch) {
  client::PushOptions options;
  options.deadline = options_.push_deadline;
  options.trace = batch.trace;
  auto push = client_.BeginPush(batch.fingerprint, batch.parts, options);
  std::vector<Item> items;
  {
    MutexLock lock(mu_);
    items = std::exchange(reserving_, {});
    // DropPending came meanwhile, and has counted them.
    if (items.empty()) return {};
    copying_ = push.ok();
  }
  if (push.ok()) Write(items, **push);
  items.clear();
  {
    MutexLock lock(mu_);
    copying_ = false;
    NotifyPushed();
  }
  if (!push.ok()) return Tally(batch.parts, push.status(), batch.trace);
  return Tally(batch.parts, (*push)->Commit(), batch.trace);
}

void PushQueue::Write(const std::vector<Item>& items, client::InPlacePush& push) const {
  // The node's memory is not read here again; a buffer of the client is, by the network.
  const bool streaming = push.path() == client::Path::kLocal;
  const auto slots = push.slots();
  for (size_t i = 0; i < items.size(); ++i) {
    if (slots[i].room.empty()) continue;  // The node has it, or refused it.
    format::SealCopy(slots[i].room, items[i].block.page, format::Codec::kRaw, layout_.WholeRect(),
                     static_cast<uint16_t>(layout_.block_tokens), layer_bytes_, streaming);
  }
}

PushQueue::Stats PushQueue::PushEncoded(std::vector<Item> items) {
  std::vector<client::PartToPush> parts;
  client::PushOptions options;
  options.deadline = options_.push_deadline;
  options.trace = items.front().block.trace;
  const Digest fingerprint = items.front().fingerprint;
  KvCodec::Scratch scratch;
  std::vector<std::vector<std::byte>> encoded = EncodedOnDevice(items);
  uint64_t on_device = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    if (encoded[i].empty()) {
      encoded[i] = EncodedPart(item.block, *item.codec, scratch);
    } else {
      ++on_device;
    }
    auto bytes = std::make_shared<const std::vector<std::byte>>(std::move(encoded[i]));
    if (bytes->empty()) break;  // Nobody could match its successors.
    auto part = Describe<client::PartToPush>(item.block, layout_);
    part.bytes = *bytes;
    part.hold = bytes;
    parts.push_back(std::move(part));
  }
  std::vector<std::shared_ptr<const void>> promises;
  for (Item& item : items) promises.push_back(std::move(item.block.promise));
  const uint64_t not_encoded = items.size() - parts.size();
  items.clear();
  {
    MutexLock lock(mu_);
    copying_ = false;
    NotifyPushed();
  }
  Stats sent;
  if (!parts.empty()) {
    sent = Tally(parts, client_.Push(fingerprint, parts, options), options.trace);
  }
  sent.failed_blocks += not_encoded;
  sent.device_blocks = on_device;
  return sent;
}

Status PushQueue::AppendSlice(const ComputedBlock& block, const KvCodec& codec, int layer,
                              KvCodec::Scratch& scratch, std::vector<std::byte>* part) const {
  if (block.selected != nullptr) {
    return block.selected->Append(block, codec, layer, scratch, part);
  }
  const size_t at = part->size();
  const uint64_t bytes = layer_bytes_[static_cast<size_t>(layer)];
  part->resize(at + codec.MaxSliceBytes(layer, block.first_position));
  CAIRN_ASSIGN_OR_RETURN(const size_t written,
                         codec.Encode(layer, block.first_position,
                                      block.page.subspan(bytes * static_cast<size_t>(layer), bytes),
                                      std::span(*part).subspan(at), scratch));
  part->resize(at + written);
  return OkStatus();
}

std::vector<std::byte> PushQueue::EncodedPart(const ComputedBlock& block, const KvCodec& codec,
                                              KvCodec::Scratch& scratch) const {
  const uint32_t header = format::HeaderBytes(static_cast<uint32_t>(layer_bytes_.size()));
  size_t most = header;
  for (size_t layer = 0; layer < layer_bytes_.size() && block.selected == nullptr; ++layer) {
    most += codec.MaxSliceBytes(static_cast<int>(layer), block.first_position);
  }
  std::vector<std::byte> part;
  part.reserve(most);
  part.resize(header);
  std::vector<uint64_t> lengths;
  std::vector<uint64_t> hashes;
  for (size_t layer = 0; layer < layer_bytes_.size(); ++layer) {
    const size_t at = part.size();
    if (const Status status = AppendSlice(block, codec, static_cast<int>(layer), scratch, &part);
        !status.ok()) {
      log::Warn("block_not_encoded", {{"error", ToString(status)},
                                      {"position", log::Num(block.first_position)},
                                      {"trace", block.trace}});
      return {};
    }
    lengths.push_back(part.size() - at);
    hashes.push_back(Xxh3(std::span(part).subspan(at)));
  }
  WriteHeader(block, codec, lengths, hashes, &part);
  return part;
}

void PushQueue::WriteHeader(const ComputedBlock& block, const KvCodec& codec,
                            std::span<const uint64_t> lengths, std::span<const uint64_t> hashes,
                            std::vector<std::byte>* part) const {
  const uint32_t header = format::HeaderBytes(static_cast<uint32_t>(layer_bytes_.size()));
  format::WriteHeader(std::span(*part).first(header), codec.id(), layout_.WholeRect(),
                      static_cast<uint16_t>(layout_.block_tokens), lengths, hashes,
                      block.selected != nullptr);
}

std::vector<std::vector<std::byte>> PushQueue::EncodedOnDevice(
    const std::vector<Item>& items) const {
  std::vector<std::vector<std::byte>> parts(items.size());
  const KvCodec& codec = *items.front().codec;
  // Raw slices are the host's pages as they are, which the device has filled already.
  if (encoder_ == nullptr || codec.raw() || codec.FormOf(codec.id()) == nullptr) return parts;
  std::vector<PageEncoder::Page> pages;
  for (const Item& item : items) {
    pages.push_back({item.block.stamp, static_cast<int64_t>(item.block.first_position)});
  }
  const uint32_t header = format::HeaderBytes(static_cast<uint32_t>(layer_bytes_.size()));
  uint64_t bytes_in = 0, bytes_out = 0;
  const TimePoint begin = clock_.Now();
  encoder_->Encode(*codec.FormOf(codec.id()), pages,
                   [&](size_t i, const PageEncoder::Encoded& encoded) {
                     std::vector<std::byte>& part = parts[i];
                     part.reserve(header + encoded.bytes.size());
                     part.resize(header);
                     part.insert(part.end(), encoded.bytes.begin(), encoded.bytes.end());
                     WriteHeader(items[i].block, codec, encoded.lengths, encoded.hashes, &part);
                     bytes_in += items[i].block.page.size();
                     bytes_out += encoded.bytes.size();
                   });
  if (bytes_out > 0) codec.CountEncoded(bytes_in, bytes_out, clock_.Now() - begin);
  return parts;
}

}  // namespace cairn::worker
