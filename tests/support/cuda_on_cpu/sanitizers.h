#pragma once
// The facts that sanitizers must be told about fibres and poisoned memory. Without a sanitizer each
// function does nothing. The files of the emulation are not instrumented themselves
// (CMakeLists.txt), so the build says which sanitizer the kernels have: CUDA_ON_CPU_ASAN,
// CUDA_ON_CPU_TSAN.

#include <cstddef>

#if defined(CUDA_ON_CPU_ASAN)
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
void __asan_poison_memory_region(const volatile void* p, size_t bytes);
void __asan_unpoison_memory_region(const volatile void* p, size_t bytes);
}
#endif
#if defined(CUDA_ON_CPU_TSAN)
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* p);
void __tsan_release(void* p);
}
#endif

namespace cairn::kernels::testing::sanitizers {

inline void Poison([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#if defined(CUDA_ON_CPU_ASAN)
  __asan_poison_memory_region(p, bytes);
#endif
}
inline void Unpoison([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#if defined(CUDA_ON_CPU_ASAN)
  __asan_unpoison_memory_region(p, bytes);
#endif
}

// Memory as it was before Release(p) on one fibre is visible after Acquire(p) on another.
inline void Acquire([[maybe_unused]] void* p) {
#if defined(CUDA_ON_CPU_TSAN)
  __tsan_acquire(p);
#endif
}
inline void Release([[maybe_unused]] void* p) {
#if defined(CUDA_ON_CPU_TSAN)
  __tsan_release(p);
#endif
}

}  // namespace cairn::kernels::testing::sanitizers
