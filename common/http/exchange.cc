#include <utility>

#include "common/http/connection.h"

namespace cairn::http {

void Exchange::Send(Response response) {
  MutexLock lock(mu_);
  if (connection_ == nullptr || begun_) return;
  begun_ = ended_ = true;
  const std::string body = std::exchange(response.body, {});
  head_ = std::move(response);
  if (!Append(body, shared_->options.all_unread_bytes)) return;
  Wake();
}

void Exchange::BeginStream(Response head) {
  MutexLock lock(mu_);
  if (connection_ == nullptr || begun_) return;
  begun_ = streamed_ = true;
  const std::string body = std::exchange(head.body, {});
  head_ = std::move(head);
  if (!Append(body, shared_->options.max_unread_bytes)) return;
  Wake();
}

bool Exchange::Write(std::string_view data) {
  MutexLock lock(mu_);
  if (connection_ == nullptr || !begun_ || ended_ || too_slow_) return false;
  if (!Append(data, shared_->options.max_unread_bytes)) return false;
  Wake();
  return true;
}

void Exchange::End() {
  MutexLock lock(mu_);
  if (connection_ == nullptr || !begun_ || ended_ || too_slow_) return;
  ended_ = true;
  Wake();
}

void Exchange::OnAbort(std::function<void()> aborted) {
  {
    MutexLock lock(mu_);
    if (connection_ != nullptr) {
      aborted_.swap(aborted);
      return;
    }
    if (ended_) return;
  }
  aborted();
}

void Exchange::AbortAnswer() {
  MutexLock lock(mu_);
  if (connection_ != nullptr) connection_->PostClose(true);
}

void Exchange::Abandon() {
  MutexLock lock(mu_);
  if (connection_ == nullptr || ended_) return;
  if (begun_) return connection_->PostClose(false);
  begun_ = ended_ = true;
  head_ = shared_->handler->Refuse(500, "the server gave no answer");
  Append(std::exchange(head_->body, {}), shared_->options.all_unread_bytes);
  Wake();
}

bool Exchange::Append(std::string_view data, uint64_t most) {
  const uint64_t held = held_.bytes() + data.size();
  if (held > most || !held_.Charge(held).ok()) {
    if (!std::exchange(too_slow_, true)) connection_->PostClose(true);
    return false;
  }
  pending_ += data;
  return true;
}

// Under the lock, so that nothing is posted for a connection that has ended.
void Exchange::Wake() {
  if (std::exchange(woken_, true)) return;
  connection_->PostFlush();
}

Exchange::Output Exchange::Take() {
  MutexLock lock(mu_);
  woken_ = false;
  return {.head = std::exchange(head_, std::nullopt),
          .streamed = streamed_,
          .body = std::exchange(pending_, {}),
          .complete = ended_};
}

void Exchange::Written(uint64_t bytes) {
  MutexLock lock(mu_);
  held_.ShrinkTo(held_.bytes() - bytes);
}

std::function<void()> Exchange::Finish() {
  std::shared_ptr<Connection> connection;
  MutexLock lock(mu_);
  connection.swap(connection_);
  held_.Clear();
  return std::exchange(aborted_, nullptr);
}

std::function<void()> Exchange::Abort() { return Finish(); }

}  // namespace cairn::http
