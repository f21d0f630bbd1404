#pragma once
// A file that others replace while a process runs.

#include <filesystem>
#include <string>
#include <system_error>
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
    const When stamp = Stamp();
    if (std::exchange(stamp_, stamp) != stamp) return News::kChanged;
    return usable ? News::kNone : News::kTryAgain;
  }

  const std::string& path() const { return path_; }

 private:
  using When = std::pair<std::filesystem::file_time_type, uintmax_t>;
  When Stamp() const {
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(path_, ignored);
    return {time, std::filesystem::file_size(path_, ignored)};
  }

  const std::string path_;
  When stamp_;
  TimePoint look_at_;
};

}  // namespace cairn::config
