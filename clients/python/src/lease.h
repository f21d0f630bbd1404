#pragma once
// A lease as a Python object.

#include <sys/types.h>

#include <memory>

#include "cairn/client/lease.h"

namespace cairn::python {

// Gives the lease back when it is released or collected. A call that uses it at that moment keeps
// it until the call ends. Callers hold the GIL, so only one thread uses it at a time. In a forked
// process nothing is given back, because the lease belongs to the parent.
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
