#pragma once
// A fibre: a stack on which a function runs until it switches back to whoever resumed it. Switching
// takes some 15 ns (Boost.Context), and sanitizers know which stack they see. For TSan a fibre is a
// thread, and a switch orders nothing: only barriers do.
//
// All fibres of a process run on the thread that resumes them, one at a time.

#include <functional>
#include <memory>

namespace cairn::kernels::testing {

class Fibre {
 public:
  // `body` begins at the first Resume, on the fibre. It must never return, only call Pause.
  explicit Fibre(std::function<void()> body);
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // Runs the fibre until it pauses. Not on a fibre.
  void Resume();
  // Back to Resume. On this fibre only.
  void Pause();

 private:
  struct State;
  static void Enter(State* state);

  const std::unique_ptr<State> state_;
};

}  // namespace cairn::kernels::testing
