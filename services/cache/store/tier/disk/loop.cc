#include "services/cache/store/tier/disk/loop.h"

#include <pthread.h>

#include <thread>
#include <utility>

namespace cairn::cache::disk {
namespace {

class ThreadLoop final : public Loop {
 public:
  ThreadLoop(const char* name, std::function<void()> body)
      : thread_([name, body = std::move(body)] {
          pthread_setname_np(pthread_self(), name);
          body();
        }) {}
  ~ThreadLoop() override { thread_.join(); }

 private:
  std::thread thread_;
};

}  // namespace

StartLoop OnThreads() {
  return [](const char* name, std::function<void()> body) -> std::unique_ptr<Loop> {
    return std::make_unique<ThreadLoop>(name, std::move(body));
  };
}

}  // namespace cairn::cache::disk
