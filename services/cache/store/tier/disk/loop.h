#pragma once
// Work that goes on at the same time as the callers, as long as an object lives: a thread, or a
// task of a simulation.

#include <functional>
#include <memory>

namespace cairn::cache::disk {

// Destroying it waits for the end of the body, which its owner has asked for.
class Loop {
 public:
  virtual ~Loop() = default;
};

// Starts the body. `name` is that of the thread, at most 15 characters.
using StartLoop =
    std::function<std::unique_ptr<Loop>(const char* name, std::function<void()> body)>;

StartLoop OnThreads();

}  // namespace cairn::cache::disk
