#pragma once

#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// No push begins while one exists: copying and sending would take processor time from the
// prefill. Any thread; pauses add up.
class PushPause {
 public:
  explicit PushPause(PushQueue* push) : push_(push) {  // Null: nothing to pause.
    if (push_ != nullptr) push_->Pause();
  }
  ~PushPause() {
    if (push_ != nullptr) push_->Resume();
  }
  PushPause(const PushPause&) = delete;
  PushPause& operator=(const PushPause&) = delete;

 private:
  PushQueue* const push_;
};

}  // namespace cairn::worker
