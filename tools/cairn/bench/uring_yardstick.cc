#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "tools/cairn/bench/yardstick.h"

namespace cairn::cli::bench {
namespace {

constexpr size_t kUringBlock = size_t{1} << 20;
constexpr unsigned kInFlight = 8;

// A ring and an unlinked file, as large as the buffers, whose extents were written once: a disk
// tier that runs for a while writes over old segments. Not thread-safe.
class UringFile {
 public:
  static Result<std::shared_ptr<UringFile>> Make(const YardstickBuffers& buffers,
                                                 const std::string& directory) {
    std::shared_ptr<UringFile> file(new UringFile(buffers));
    const int error = io_uring_queue_init(kInFlight, &file->ring_, 0);
    if (error != 0) {
      return Errorf(StatusCode::kUnavailable, "io_uring cannot be used: {}", std::strerror(-error));
    }
    file->ring_made_ = true;
    std::string path = directory + "/yardstick-XXXXXX";
    file->fd_ = mkostemp(path.data(), O_DIRECT | O_CLOEXEC);
    if (file->fd_ < 0) {
      return Errorf(StatusCode::kUnavailable, "no file for O_DIRECT in '{}': {}", directory,
                    std::strerror(errno));
    }
    unlink(path.c_str());
    CAIRN_RETURN_IF_ERROR(file->Run(/*write=*/true).status());
    return file;
  }
  ~UringFile() {
    if (fd_ >= 0) close(fd_);
    if (ring_made_) io_uring_queue_exit(&ring_);
  }

  // GB/s of all blocks once, written in order or read in any order.
  Result<double> Run(bool write) {
    const std::span<std::byte> memory =
        write ? buffers_.source.bytes() : buffers_.destination.bytes();
    std::vector<size_t> order(memory.size() / kUringBlock);
    std::iota(order.begin(), order.end(), size_t{0});
    if (!write) std::shuffle(order.begin(), order.end(), random_);
    const auto start = std::chrono::steady_clock::now();
    size_t submitted = 0, done = 0;
    while (done < order.size()) {
      for (; submitted < order.size() && submitted - done < kInFlight; ++submitted) {
        io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
        if (entry == nullptr) break;
        const size_t at = order[submitted] * kUringBlock;
        if (write) {
          io_uring_prep_write(entry, fd_, memory.data() + at, kUringBlock, at);
        } else {
          io_uring_prep_read(entry, fd_, memory.data() + at, kUringBlock, at);
        }
      }
      io_uring_submit(&ring_);
      io_uring_cqe* completion = nullptr;
      const int error = io_uring_wait_cqe(&ring_, &completion);
      if (error == -EINTR) continue;
      if (error != 0) {
        return Errorf(StatusCode::kUnavailable, "raw io_uring: {}", std::strerror(-error));
      }
      const int moved = completion->res;
      io_uring_cqe_seen(&ring_, completion);
      if (moved != static_cast<int>(kUringBlock)) {
        return Errorf(StatusCode::kUnavailable, "raw io_uring: {} of {} bytes: {}", moved,
                      kUringBlock, moved < 0 ? std::strerror(-moved) : "short");
      }
      ++done;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return static_cast<double>(memory.size()) / took.count() / 1e9;
  }

 private:
  explicit UringFile(const YardstickBuffers& buffers) : buffers_(buffers) {}

  const YardstickBuffers& buffers_;
  io_uring ring_{};
  bool ring_made_ = false;
  int fd_ = -1;
  std::mt19937_64 random_{1};
};

class UringYardstick final : public Yardstick {
 public:
  UringYardstick(std::shared_ptr<UringFile> file, bool write)
      : file_(std::move(file)), write_(write) {}
  std::string name() const override { return write_ ? "uring_write" : "uring_read"; }
  std::string description() const override {
    return fmt::format("io_uring with O_DIRECT, 1 MiB blocks, {} in flight, {}", kInFlight,
                       write_ ? "written over old ones in order" : "read in random order");
  }
  Result<double> Measure() override { return file_->Run(write_); }

 private:
  const std::shared_ptr<UringFile> file_;
  const bool write_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Yardstick>>> NewUringYardsticks(const YardstickBuffers& buffers,
                                                                   const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<UringFile> file,
                         UringFile::Make(buffers, directory));
  std::vector<std::unique_ptr<Yardstick>> both;
  both.push_back(std::make_unique<UringYardstick>(file, true));
  both.push_back(std::make_unique<UringYardstick>(file, false));
  return both;
}

}  // namespace cairn::cli::bench
