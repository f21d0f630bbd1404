#include "services/cache/store/tier/disk/record_writer.h"

#include <algorithm>
#include <utility>

namespace cairn::cache::disk {
namespace {

// After a failure, what is to be forgotten waits so long.
constexpr std::chrono::milliseconds kForgetAgain{200};

}  // namespace

RecordWriter::RecordWriter(Parts parts, const StartLoop& start) : parts_(std::move(parts)) {
  loop_ = start("disk-records", [this] { Run(); });
}

void RecordWriter::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  loop_.reset();
}

void RecordWriter::Add(std::vector<PlacedExtent> placed) {
  MutexLock lock(mu_);
  came_ += placed.size();
  for (PlacedExtent& p : placed) {
    if (!p.moved) waiting_bytes_ += p.stored.length;
    next_.placed.push_back(std::move(p));
  }
  changed_.NotifyAll();
}

void RecordWriter::Forget(const ForgottenExtent& forgotten, bool wake) {
  MutexLock lock(mu_);
  ++came_;
  next_.forgotten.push_back(forgotten);
  if (wake) changed_.NotifyAll();
}

void RecordWriter::Wake() {
  MutexLock lock(mu_);
  changed_.NotifyAll();
}

Status RecordWriter::WaitWritten(const Patience& patience) {
  MutexLock lock(mu_);
  const uint64_t goal = came_;
  const uint64_t failed = failed_batches_;
  CAIRN_RETURN_IF_ERROR(patience.Wait(
      changed_, mu_, parts_.clock, "written all records", [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return done_ >= goal || failed_batches_ != failed || stopping_;
      }));
  if (done_ >= goal) return OkStatus();
  return failed_batches_ != failed
             ? last_failure_
             : Errorf(StatusCode::kUnavailable, "disk tier: flush: the tier closes");
}

uint64_t RecordWriter::waiting_bytes() const {
  MutexLock lock(mu_);
  return waiting_bytes_;
}

Status RecordWriter::failure() const {
  MutexLock lock(mu_);
  return failing_ ? last_failure_ : OkStatus();
}

void RecordWriter::Run() {
  TimePoint again{};
  for (;;) {
    // A new one each time: what callbacks hold ends with them, and may ask this object, so it does
    // not end under its lock.
    Batch batch;
    if (!WaitForBatch(again, &batch)) return;
    const size_t came = batch.placed.size();
    batch.placed = parts_.table.StillWanted(std::move(batch.placed));
    if (const size_t unwanted = came - batch.placed.size(); unwanted > 0) {
      MutexLock lock(mu_);
      done_ += unwanted;
      changed_.NotifyAll();
    }
    const Status status = Apply(batch);
    again = status.ok() ? TimePoint{} : parts_.clock.Now() + kForgetAgain;
    Settle(batch, status);
    MutexLock lock(mu_);
    if (stopping_ && !status.ok()) return;
  }
}

bool RecordWriter::WaitForBatch(TimePoint again, Batch* batch) {
  const Clock& clock = parts_.clock;
  MutexLock lock(mu_);
  const auto due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !next_.placed.empty() || (!next_.forgotten.empty() && clock.Now() >= again);
  };
  while (!due()) {
    if (next_.forgotten.empty()) {
      changed_.Wait(mu_, clock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return due() || !next_.forgotten.empty();
      });
    } else {
      changed_.WaitUntil(mu_, clock, again, due);
    }
  }
  *batch = std::exchange(next_, {});
  return !batch->placed.empty() || !batch->forgotten.empty();
}

Status RecordWriter::Apply(const Batch& batch) {
  std::vector<uint64_t> ids;
  ids.reserve(batch.forgotten.size());
  for (const ForgottenExtent& f : batch.forgotten) ids.push_back(f.id);
  std::vector<StoredExtent> stored;
  stored.reserve(batch.placed.size());
  for (const PlacedExtent& p : batch.placed) {
    stored.push_back(p.stored);
    if (p.moved) stored.back().record = p.record_copy;
  }
  Status status = parts_.store.Apply(ids, stored);
  if (status.ok() || parts_.files.FreeBytes() < std::max<uint64_t>(parts_.min_free_bytes, 1)) {
    return status;
  }
  // After a fault, the database refuses everything until it is asked to go on.
  if (!parts_.store.Resume().ok()) return status;
  return parts_.store.Apply(ids, stored);
}

void RecordWriter::Settle(const Batch& batch, const Status& status) {
  const std::vector<ForgottenExtent> again =
      parts_.table.Settle(batch.placed, batch.forgotten, status.ok());
  if (!status.ok()) ++failures_;
  size_t writes = 0;
  {
    MutexLock lock(mu_);
    done_ += batch.placed.size();
    failing_ = !status.ok();
    if (status.ok()) {
      done_ += batch.forgotten.size();
    } else {
      next_.forgotten.insert(next_.forgotten.begin(), batch.forgotten.begin(),
                             batch.forgotten.end());
      ++failed_batches_;
      last_failure_ = status;
    }
    came_ += again.size();
    next_.forgotten.insert(next_.forgotten.end(), again.begin(), again.end());
    for (const PlacedExtent& p : batch.placed) {
      if (!p.moved) waiting_bytes_ -= p.stored.length;
    }
    changed_.NotifyAll();
  }
  for (const PlacedExtent& p : batch.placed) {
    if (p.moved) continue;
    p.done(status);
    ++writes;
  }
  parts_.settled(writes);
}

}  // namespace cairn::cache::disk
