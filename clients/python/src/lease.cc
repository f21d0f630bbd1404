#include "clients/python/src/lease.h"

#include <unistd.h>

#include <utility>

namespace cairn::python {

LeaseHandle::LeaseHandle(client::Lease lease) : process_(getpid()) {
  if (!lease.held()) return;
  info_ = lease.info();
  lease_ = std::make_shared<client::Lease>(std::move(lease));
}

void LeaseHandle::Release() {
  if (lease_ == nullptr) return;
  if (getpid() != process_) new std::shared_ptr(std::move(lease_));  // Kept forever.
  lease_.reset();
}

Result<std::shared_ptr<const client::Lease>> LeaseHandle::Get() const {
  if (lease_ == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "field 'lease': it is not held");
  }
  return lease_;
}

}  // namespace cairn::python
