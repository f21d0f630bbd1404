#include "services/cache/store/tier/disk/request_line.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace cairn::cache::disk {

RequestLine::RequestLine() : event_fd_(eventfd(0, EFD_CLOEXEC)) {}

RequestLine::~RequestLine() {
  if (event_fd_ >= 0) close(event_fd_);
}

void RequestLine::Wake() {
  const uint64_t one = 1;
  (void)!write(event_fd_, &one, sizeof(one));
}

void RequestLine::Push(IoRequest* request) {
  bool wake;
  {
    MutexLock lock(mu_);
    request->next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = request;
    last_ = request;
    wake = std::exchange(asleep_, false);
  }
  if (wake) Wake();
}

IoRequest* RequestLine::Pop() {
  MutexLock lock(mu_);
  IoRequest* const request = first_;
  if (request != nullptr) {
    first_ = request->next;
    if (first_ == nullptr) last_ = nullptr;
  }
  return request;
}

bool RequestLine::MaySleep(bool takes) {
  MutexLock lock(mu_);
  if (takes && (first_ != nullptr || stopping_)) return false;
  // At full depth a new request changes nothing: only a completion wakes.
  asleep_ = takes;
  return true;
}

void RequestLine::Awake() {
  MutexLock lock(mu_);
  asleep_ = false;
}

void RequestLine::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  Wake();
}

bool RequestLine::stopping() const {
  MutexLock lock(mu_);
  return stopping_;
}

}  // namespace cairn::cache::disk
