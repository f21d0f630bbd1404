#include "services/cache/store/tier/disk/named_values.h"

#include <string>
#include <utility>

namespace cairn::cache::disk {
namespace {

constexpr size_t kMaxWaiting = 64;
constexpr std::string_view kPrefix = "m/";

std::string KeyOf(std::string_view name) { return std::string(kPrefix) + std::string(name); }

}  // namespace

struct NamedValues::Operation {
  std::function<Status()> run;
  bool done = false;
  Status status;
};

NamedValues::NamedValues(RecordStore& store, const Clock& clock, Duration patience,
                         const StartLoop& start)
    : store_(store), clock_(clock), patience_(patience) {
  loop_ = start("disk-meta", [this] { Run(); });
}

void NamedValues::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  loop_.reset();
}

Status NamedValues::Put(std::string_view name, std::string_view value) {
  if (name.empty()) return InvalidArgument("field 'name': got '', expected a name");
  return Do([this, key = KeyOf(name), stored = std::string(value)] {
    return store_.PutSmall(key, stored);
  });
}

Status NamedValues::Delete(std::string_view name) {
  if (name.empty()) return InvalidArgument("field 'name': got '', expected a name");
  return Do([this, key = KeyOf(name)] { return store_.DeleteSmall(key); });
}

Status NamedValues::List(const std::function<void(std::string_view, std::string_view)>& visitor) {
  return store_.ListSmall(kPrefix, [&](std::string_view key, std::string_view value) {
    visitor(key.substr(kPrefix.size()), value);
  });
}

Status NamedValues::Do(std::function<Status()> run) {
  const auto operation = std::make_shared<Operation>();
  operation->run = std::move(run);
  MutexLock lock(mu_);
  if (stopping_ || queue_.size() >= kMaxWaiting) {
    return Errorf(StatusCode::kUnavailable,
                  "disk tier: {} named values wait to be written, expected fewer than {}",
                  queue_.size(), kMaxWaiting);
  }
  queue_.push_back(operation);
  changed_.NotifyAll();
  if (!changed_.WaitUntil(mu_, clock_, clock_.Now() + patience_, [&] { return operation->done; })) {
    return Errorf(StatusCode::kUnavailable,
                  "disk tier: the device has not written a named value in {:.1f} s",
                  Seconds(patience_));
  }
  return operation->status;
}

void NamedValues::Run() {
  for (;;) {
    std::shared_ptr<Operation> operation;
    {
      MutexLock lock(mu_);
      changed_.Wait(mu_, clock_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || !queue_.empty();
      });
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.pop_front();
    }
    Status status = operation->run();
    if (!status.ok()) ++failures_;
    MutexLock lock(mu_);
    operation->status = std::move(status);
    operation->done = true;
    changed_.NotifyAll();
  }
}

}  // namespace cairn::cache::disk
