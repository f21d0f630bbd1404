#pragma once
// A function on a stack of its own, which stops in the middle and goes on later.

#include <cstddef>
#include <functional>
#include <memory>

namespace cairn::testing {

// All in one thread.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();  // REQUIRES: done().
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it calls Yield or ends. Not from inside of a fiber.
  void Resume();
  // Goes back to Resume. REQUIRES: this fiber is running.
  void Yield();
  bool done() const { return done_; }

 private:
  struct Context;
  static void Enter(unsigned high, unsigned low);
  static void Switch(Context& from, Context& to, bool from_ends);

  const std::function<void()> body_;
  const std::unique_ptr<Context> outside_;
  const std::unique_ptr<Context> inside_;
  bool done_ = false;
};

}  // namespace cairn::testing
