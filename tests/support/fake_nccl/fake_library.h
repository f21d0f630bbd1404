#pragma once
// The fake NCCL of a test: loads the library, and fails the test if callers did wrong, or if
// communicators are left.
//
//   FakeNccl nccl("hang=CommAbort:0");
//   auto maker = nccl::Maker(nccl.library(), device);
//
// One at a time in a process, after its FakeDevices. Thread-compatible.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/link/nccl/library.h"
#include "tests/support/fake_nccl/control.h"

namespace cairn::link::fake {

// build/*/bin/libfakenccl.so, from the place of the running program.
inline std::string LibraryPath() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  return (self.parent_path().parent_path() / "bin" / "libfakenccl.so").string();
}

class FakeNccl {
 public:
  explicit FakeNccl(const std::string& options = "") {
    void* const library = dlopen(LibraryPath().c_str(), RTLD_NOW | RTLD_LOCAL);
    CAIRN_CHECK(library != nullptr);
    const auto get = reinterpret_cast<GetControl>(dlsym(library, kGetControl));
    CAIRN_CHECK(get != nullptr);
    control_ = get();
    control_->reset(options.c_str());
    before_ = control_->communicators();
  }
  ~FakeNccl() {
    EXPECT_EQ(TakeReports(), "");
    EXPECT_EQ(control_->communicators(), before_ + left_) << "communicators are left";
    control_->reset("");
  }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  // REQUIRES: its version is one that we accept.
  std::shared_ptr<const nccl::Library> library() {
    auto library = nccl::Library::Load({.path = LibraryPath()});
    CAIRN_CHECK(library.ok());
    return *library;
  }
  const Control& control() const { return *control_; }
  std::string TakeReports() {
    std::string text(16 << 10, '\0');
    control_->take_reports(text.data(), text.size());
    return text.c_str();
  }
  // That many communicators of this test never end.
  void ExpectLeft(uint64_t left) { left_ = left; }

 private:
  const Control* control_ = nullptr;
  uint64_t before_ = 0, left_ = 0;
};

}  // namespace cairn::link::fake
