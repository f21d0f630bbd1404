#pragma once
// A file that others replace while a process runs.

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>

#include "cairn/common/clock.h"

namespace cairn::config {

// Says when the file may say something new. One thread at a time.
class FollowedFile {
 public:
  // A change is known within a second, also where somebody looks ten times a second.
  static constexpr Duration kLookEvery = std::chrono::milliseconds(500);

  FollowedFile(std::string path, TimePoint now)
      : path_(std::move(path)), stamp_(Stamp()), look_at_(now + kLookEvery) {}

  enum class News {
    kNone,
    kChanged,
    kTryAgain,  // It has not changed, but could not be used. It may be readable again now.
  };
  // `usable`: whether what was read last could be used.
  News Look(TimePoint now, bool usable) {
    if (now < look_at_) return News::kNone;
    look_at_ = now + kLookEvery;
    const Seen stamp = Stamp();
    if (std::exchange(stamp_, stamp) != stamp) return News::kChanged;
    return usable ? News::kNone : News::kTryAgain;
  }

  const std::string& path() const { return path_; }

 private:
  // A file that was put in its place may have the same time and size; it is another one, or its
  // status was changed then.
  struct Seen {
    dev_t device = 0;
    ino_t file = 0;
    off_t size = 0;
    int64_t written_ns = 0, changed_ns = 0;
    bool operator==(const Seen&) const = default;
  };
  Seen Stamp() const {
    struct stat now {};
    if (stat(path_.c_str(), &now) != 0) return {};
    const auto ns = [](const timespec& time) {
      return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
    };
    return {now.st_dev, now.st_ino, now.st_size, ns(now.st_mtim), ns(now.st_ctim)};
  }

  const std::string path_;
  Seen stamp_;
  TimePoint look_at_;
};

}  // namespace cairn::config
