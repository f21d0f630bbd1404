#include "tests/simulation/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "cairn/common/status.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace cairn::testing {
namespace {

constexpr size_t kStackBytes = 4 << 20;  // Only touched pages cost memory.

}  // namespace

struct Fiber::Context {
  ucontext_t registers{};
  // The bottom of the stack, for AddressSanitizer. A fiber learns where the stack outside is when
  // it is entered.
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* fake_stack = nullptr;
  void* tsan_fiber = nullptr;
};

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)),
      outside_(std::make_unique<Context>()),
      inside_(std::make_unique<Context>()) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  CAIRN_CHECK(stack != MAP_FAILED);
  // Below the stack: one that is too deep faults, and does not write over others.
  CAIRN_CHECK(mprotect(stack, page, PROT_NONE) == 0);
  inside_->bottom = stack;
  inside_->bytes = kStackBytes;
  CAIRN_CHECK(getcontext(&inside_->registers) == 0);
  inside_->registers.uc_stack.ss_sp = stack;
  inside_->registers.uc_stack.ss_size = kStackBytes;
  inside_->registers.uc_link = nullptr;
  // makecontext passes ints only.
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&inside_->registers, reinterpret_cast<void (*)()>(&Fiber::Enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
#if defined(__SANITIZE_THREAD__)
  inside_->tsan_fiber = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  CAIRN_CHECK(done_);
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(inside_->tsan_fiber);
#endif
  munmap(const_cast<void*>(inside_->bottom), inside_->bytes);
}

void Fiber::Switch(Context& from, Context& to, [[maybe_unused]] bool from_ends) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.fake_stack, to.bottom, to.bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.tsan_fiber, 0);
#endif
  CAIRN_CHECK(swapcontext(&from.registers, &to.registers) == 0);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Enter(unsigned high, unsigned low) {
  auto* const self =
      reinterpret_cast<Fiber*>((static_cast<uintptr_t>(high) << 32) | static_cast<uintptr_t>(low));
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->outside_->bottom, &self->outside_->bytes);
#endif
  self->body_();
  self->done_ = true;
  Switch(*self->inside_, *self->outside_, /*from_ends=*/true);
}

void Fiber::Resume() {
  CAIRN_CHECK(!done_);
#if defined(__SANITIZE_THREAD__)
  // Not in the constructor, which may run inside of another fiber.
  outside_->tsan_fiber = __tsan_get_current_fiber();
#endif
  Switch(*outside_, *inside_, /*from_ends=*/false);
}

void Fiber::Yield() { Switch(*inside_, *outside_, /*from_ends=*/false); }

}  // namespace cairn::testing
