#include "tests/support/cuda_on_cpu/fibre.h"

#include <boost/context/detail/fcontext.hpp>
#include <utility>

#include "tests/support/cuda_on_cpu/sanitizers.h"

namespace cairn::kernels::testing {
namespace {

namespace context = boost::context::detail;

// Kernels keep a few KiB; frames under ASan are several times larger.
constexpr size_t kStackBytes = size_t{256} << 10;

}  // namespace

struct Fibre::State {
  std::function<void()> body;
  std::unique_ptr<char[]> stack;
  context::fcontext_t fibre = nullptr;
  context::fcontext_t resumer = nullptr;
#if defined(CUDA_ON_CPU_ASAN)
  const void* resumer_bottom = nullptr;
  size_t resumer_bytes = 0;
#endif
#if defined(CUDA_ON_CPU_TSAN)
  void* tsan_fibre = nullptr;
  void* tsan_resumer = nullptr;
#endif
};

Fibre::Fibre(std::function<void()> body) : state_(std::make_unique<State>()) {
  state_->body = std::move(body);
  state_->stack.reset(new char[kStackBytes]);
  state_->fibre =
      context::make_fcontext(state_->stack.get() + kStackBytes, kStackBytes, [](auto from) {
        auto* state = static_cast<State*>(from.data);
        state->resumer = from.fctx;
        Enter(state);
      });
#if defined(CUDA_ON_CPU_TSAN)
  state_->tsan_fibre = __tsan_create_fiber(0);
#endif
}

Fibre::~Fibre() {
  sanitizers::Unpoison(state_->stack.get(), kStackBytes);
#if defined(CUDA_ON_CPU_TSAN)
  __tsan_destroy_fiber(state_->tsan_fibre);
#endif
}

void Fibre::Enter([[maybe_unused]] State* state) {
#if defined(CUDA_ON_CPU_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &state->resumer_bottom, &state->resumer_bytes);
#endif
  state->body();
  __builtin_trap();  // There is nowhere to return to.
}

void Fibre::Resume() {
  State& s = *state_;
#if defined(CUDA_ON_CPU_TSAN)
  constexpr unsigned kNoOrder = 1;
  s.tsan_resumer = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(s.tsan_fibre, kNoOrder);
#endif
#if defined(CUDA_ON_CPU_ASAN)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, s.stack.get(), kStackBytes);
#endif
  s.fibre = context::jump_fcontext(s.fibre, &s).fctx;
#if defined(CUDA_ON_CPU_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fibre::Pause() {
  State& s = *state_;
#if defined(CUDA_ON_CPU_TSAN)
  constexpr unsigned kNoOrder = 1;
  __tsan_switch_to_fiber(s.tsan_resumer, kNoOrder);
#endif
#if defined(CUDA_ON_CPU_ASAN)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, s.resumer_bottom, s.resumer_bytes);
#endif
  s.resumer = context::jump_fcontext(s.resumer, &s).fctx;
#if defined(CUDA_ON_CPU_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack, &s.resumer_bottom, &s.resumer_bytes);
#endif
}

}  // namespace cairn::kernels::testing
