#pragma once
// The asynchronous copies of one emulated thread: issued, committed as a group, landed group by
// group when the thread waits.

#include <deque>
#include <vector>

#include "kernels/cuda/on_cpu.h"

namespace cairn::kernels::testing {

// The copies of one fibre: one thread at a time.
class ThreadCopies {
 public:
  using Copy = cuda::on_cpu::Copy;

  void Issue(const Copy& copy) { open_.push_back(copy); }
  void Commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }
  // False: at most `groups` groups are left.
  bool NextToLand(unsigned groups, Copy* copy) {
    while (landing_.empty()) {
      if (groups_.size() <= groups) return false;
      landing_ = std::move(groups_.front());
      groups_.pop_front();
    }
    // The order within a group is not promised: the last comes first.
    *copy = landing_.back();
    landing_.pop_back();
    return true;
  }
  bool empty() const { return open_.empty() && groups_.empty() && landing_.empty(); }
  void Clear() {
    open_.clear();
    groups_.clear();
    landing_.clear();
  }

 private:
  std::vector<Copy> open_;
  std::deque<std::vector<Copy>> groups_;
  std::vector<Copy> landing_;
};

}  // namespace cairn::kernels::testing
