#pragma once
// The thread that keeps a client's session open.

#include <thread>

#include "clients/cpp/src/core/session.h"

namespace cairn::client {

// Makes the steps of a session until it is destroyed. The session must outlive it, and must have
// been made with Options::has_thread. Thread-compatible.
class SessionThread {
 public:
  explicit SessionThread(Session* session) : session_(session) {
    thread_ = std::thread([this] {
      TimePoint next;
      do {
        next = session_->Step();
      } while (session_->WaitForWork(next));
    });
  }
  ~SessionThread() {
    session_->Stop();
    thread_.join();
  }
  SessionThread(const SessionThread&) = delete;
  SessionThread& operator=(const SessionThread&) = delete;

 private:
  Session* const session_;
  std::thread thread_;
};

}  // namespace cairn::client
