#pragma once
// Waits happen without Python's global interpreter lock (GIL), and may outlive the interpreter.

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace cairn::python {

// Releases the GIL for its scope. Belongs to the thread that made it.
//
// When the interpreter ends while a daemon thread waits, Python (before 3.14) ends that thread with
// pthread_exit as soon as it asks for the GIL. The unwinding would pass destructors, which are
// noexcept, and end the process with std::terminate. Such a thread stays here instead, as it does
// from Python 3.14 on: it holds nothing, and the process ends without it.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      while (true) pause();
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace cairn::python
