#include "tests/support/frame_switch.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cairn::testing {
namespace {

using SteadyTime = std::chrono::steady_clock;

// Jumbo frames of 9,000 bytes fit.
constexpr size_t kLargestFrame = 16384;
constexpr size_t kHeader = 14;
// More is dropped, as by a switch whose memory is full.
constexpr size_t kMostWaitingBytes = 64 << 20;
// Then other ports, and what is due, have their turn.
constexpr int kFramesAtOnce = 32;

}  // namespace

std::string FrameSwitch::StationAddress(size_t port) {
  return fmt::format("02:00:00:00:00:{:02x}", port);
}

Result<OwnedFd> FrameSwitch::MakeTap(const std::string& name) {
  OwnedFd tap(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (tap.get() < 0) {
    return Errorf(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kPermissionDenied,
                  "/dev/net/tun: {}", std::strerror(errno));
  }
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (ioctl(tap.get(), TUNSETIFF, &request) != 0) {
    return Errorf(StatusCode::kPermissionDenied, "a TAP device: {}", std::strerror(errno));
  }
  return tap;
}

FrameSwitch::FrameSwitch(std::vector<OwnedFd> taps, const LinkDelay& delay, uint64_t seed)
    : taps_(std::move(taps)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      links_(taps_.size() * taps_.size(), Link{delay}),
      random_(seed) {
  CAIRN_CHECK(stop_.get() >= 0);
  thread_ = std::thread([this] { Forward(); });
}

FrameSwitch::~FrameSwitch() {
  CAIRN_CHECK(eventfd_write(stop_.get(), 1) == 0);
  thread_.join();
}

void FrameSwitch::SetDelay(size_t from, size_t to, const LinkDelay& delay) {
  const MutexLock lock(mu_);
  LinkOf(from, to).delay = delay;
}

void FrameSwitch::Forward() {
  std::vector<pollfd> ready;
  for (const OwnedFd& tap : taps_) ready.push_back({tap.get(), POLLIN, 0});
  ready.push_back({stop_.get(), POLLIN, 0});
  while (ready.back().revents == 0) {
    const std::chrono::nanoseconds wait = SendDue();
    const timespec timeout{wait.count() / 1'000'000'000, wait.count() % 1'000'000'000};
    if (ppoll(ready.data(), ready.size(), wait.count() < 0 ? nullptr : &timeout, nullptr) < 0) {
      CAIRN_CHECK(errno == EINTR);
      continue;
    }
    for (size_t port = 0; port < taps_.size(); ++port) {
      if ((ready[port].revents & POLLIN) != 0) Receive(port);
    }
  }
}

void FrameSwitch::Receive(size_t from) {
  std::array<char, kLargestFrame> buffer;
  for (int i = 0; i < kFramesAtOnce; ++i) {
    const ssize_t n = read(taps_[from].get(), buffer.data(), buffer.size());
    if (n < static_cast<ssize_t>(kHeader)) return;
    const auto bytes = std::make_shared<const std::vector<char>>(buffer.data(), buffer.data() + n);
    // The lowest bit of the first byte: to all, or to a group.
    if ((buffer[0] & 1) != 0) {
      for (size_t to = 0; to < taps_.size(); ++to) {
        if (to != from) Enqueue(from, to, bytes);
      }
    } else if (const size_t to = static_cast<unsigned char>(buffer[5]); to < taps_.size()) {
      Enqueue(from, to, bytes);
    }
  }
}

void FrameSwitch::Enqueue(size_t from, size_t to,
                          const std::shared_ptr<const std::vector<char>>& bytes) {
  const MutexLock lock(mu_);
  Link& link = LinkOf(from, to);
  const auto chosen = [&](uint32_t per_mille) { return random_() % 1000 < per_mille; };
  const uint64_t copies = chosen(link.delay.duplicated) ? 2 : 1;
  for (uint64_t i = 0; i < copies && waiting_bytes_ + bytes->size() <= kMostWaitingBytes; ++i) {
    const auto jitter = std::chrono::microseconds(
        random_() % (static_cast<uint64_t>(link.delay.jitter.count()) + 1));
    Time due = SteadyTime::now() + link.delay.least + jitter;
    if (chosen(link.delay.reordered)) {
      due += link.delay.least;
    } else {
      due = link.last = std::max(due, link.last);
    }
    waiting_.push({due, next_number_++, to, bytes});
    waiting_bytes_ += bytes->size();
  }
}

std::chrono::nanoseconds FrameSwitch::SendDue() {
  while (!waiting_.empty()) {
    const Frame& next = waiting_.top();
    const auto wait = next.due - SteadyTime::now();
    if (wait > wait.zero()) return wait;
    // A station whose device is down, or full, loses the frame.
    (void)!write(taps_[next.to].get(), next.bytes->data(), next.bytes->size());
    waiting_bytes_ -= next.bytes->size();
    waiting_.pop();
  }
  return std::chrono::nanoseconds(-1);
}

}  // namespace cairn::testing
