#include "services/cache/store/tier/device/inner_copies.h"

#include <utility>

namespace cairn::cache {

Result<std::unique_ptr<InnerCopies>> InnerCopies::Create(std::shared_ptr<device::Device> device,
                                                         device::EventPoller* poller) {
  std::unique_ptr<InnerCopies> copies(new InnerCopies(std::move(device), poller));
  MutexLock lock(copies->mu_);
  CAIRN_ASSIGN_OR_RETURN(copies->stream_, copies->device_->NewStream());
  return copies;
}

InnerCopies::~InnerCopies() {
  MutexLock lock(mu_);
  if (device_->lost()) return;
  const auto event = device_->NewEvent();
  if (event.ok() && stream_.Record(*event).ok()) (void)event->Synchronize();
}

void InnerCopies::Submit(std::span<const device::CopyTask> tasks, IoCallback done) {
  auto event = device_->NewEvent();
  Status issued = event.status();
  if (issued.ok()) {
    MutexLock lock(mu_);
    issued = stream_.Copy("copy within the device", tasks);
    // Should there be no event behind the copies, they may still run: what comes of them in memory
    // that has another use by then is found by its hash.
    if (issued.ok()) issued = stream_.Record(*event);
  }
  if (!issued.ok()) return done(issued);
  poller_.Watch(*std::move(event), std::move(done));
}

}  // namespace cairn::cache
