#include "services/cache/store/tier/disk/segment_io.h"

#include <utility>

#include "cairn/common/hash.h"

namespace cairn::cache::disk {
namespace {

// Waits for several callbacks.
class Join {
 public:
  Join(size_t count, const Clock& clock) : clock_(clock), statuses_(count), left_(count) {}
  FullIo::Done Callback(size_t i) {
    return [this, i](Status status) {
      MutexLock lock(mu_);
      statuses_[i] = std::move(status);
      if (--left_ == 0) done_.NotifyAll();
    };
  }
  std::vector<Status> Wait() {
    MutexLock lock(mu_);
    done_.Wait(mu_, clock_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return left_ == 0; });
    return std::move(statuses_);
  }

 private:
  const Clock& clock_;
  Mutex mu_;
  CondVar done_;
  std::vector<Status> statuses_ ABSL_GUARDED_BY(mu_);
  size_t left_ ABSL_GUARDED_BY(mu_);
};

// The file stays open until then.
FullIo::Done Holding(FileRef file, FullIo::Done done) {
  return
      [file = std::move(file), done = std::move(done)](Status status) { done(std::move(status)); };
}

}  // namespace

std::vector<Status> SegmentIo::Read(std::span<const Resident> residents,
                                    std::vector<PageBuffer>* buffers) const {
  Join reads(residents.size(), clock);
  for (size_t i = 0; i < residents.size(); ++i) {
    const Resident& r = residents[i];
    std::byte* const memory = buffers->emplace_back(r.length).data();
    if (memory == nullptr) {
      reads.Callback(i)(
          Errorf(StatusCode::kResourceExhausted, "disk tier: no memory for a buffer"));
      continue;
    }
    const Result<FileRef> file = files.Use(r.place.segment);
    if (!file.ok()) {
      reads.Callback(i)(file.status());
      continue;
    }
    auto* const io = FullIo::NewRead((*file)->fd(), OffsetOf(r.place));
    io->AddDestination({memory, r.length});
    io->Start(lanes.reader(r.id), Holding(*file, reads.Callback(i)));
  }
  std::vector<Status> read = reads.Wait();
  for (size_t i = 0; i < residents.size(); ++i) {
    const Resident& r = residents[i];
    if (!read[i].ok()) {
      (*buffers)[i] = PageBuffer();
    } else if (Xxh3({(*buffers)[i].data(), r.length}) != r.hash) {
      read[i] = Errorf(StatusCode::kDataLoss, "hash is wrong");
    }
  }
  return read;
}

std::vector<Status> SegmentIo::Write(std::span<const PlacedExtent> placed,
                                     std::span<const PageBuffer* const> buffers) const {
  if (placed.empty()) return {};
  Join writes(placed.size(), clock);
  for (size_t i = 0; i < placed.size(); ++i) {
    const StoredExtent& stored = placed[i].stored;
    const Result<FileRef> file = files.Use(stored.place.segment);
    if (!file.ok()) {
      writes.Callback(i)(file.status());
      continue;
    }
    auto* const io = FullIo::NewWrite((*file)->fd(), OffsetOf(stored.place));
    io->AddSource({buffers[i]->data(), stored.length});
    io->Start(lanes.writer.get(), Holding(*file, writes.Callback(i)));
  }
  return writes.Wait();
}

}  // namespace cairn::cache::disk
