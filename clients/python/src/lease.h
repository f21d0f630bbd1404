#pragma once
// A lease as a Python object.

#include <sys/types.h>

#include <memory>

#include "cairn/client/lease.h"

namespace cairn::python {

// Gives the lease back when it is released or collected; a call that uses it just then keeps it
// until its end. Used with the GIL held, so by one thread at a time. In a forked process nothing is
// given back: the lease is the parent's.
class LeaseHandle {
 public:
  explicit LeaseHandle(client::Lease lease);
  ~LeaseHandle() { Release(); }
  LeaseHandle(const LeaseHandle&) = delete;
  LeaseHandle& operator=(const LeaseHandle&) = delete;

  bool held() const { return lease_ != nullptr; }
  void Release();
  // FAILED_PRECONDITION when it is not held.
  Result<std::shared_ptr<const client::Lease>> Get() const;
  const client::LeaseInfo& info() const { return info_; }

 private:
  const pid_t process_;
  client::LeaseInfo info_;
  std::shared_ptr<const client::Lease> lease_;
};

}  // namespace cairn::python
