#pragma once
// The operations that compute capability 9.0a has in addition to device.h, in the same two
// spellings: barriers in shared memory, copies of boxes by the tensor memory accelerator, and
// products of matrices by a warp group, which read shared memory themselves. PTX stands here and in
// device.h only.
//
// For other architectures nvcc compiles kernels without a body: guard it with
// CAIRN_HAS_SM90.

#include "kernels/cuda/device.h"
#if !defined(__CUDACC__)
#include <functional>
#include <utility>
#include <vector>

#include "kernels/cuda/on_cpu_sm90.h"
#endif

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CAIRN_HAS_SM90 1
#else
#define CAIRN_HAS_SM90 0
#endif

namespace cairn::kernels::cuda {

constexpr int kWarpGroup = 128;

// A matrix of 16-bit numbers in global memory, of which boxes of 64 columns are copied. For a GPU
// its driver makes it (cuTensorMapEncodeTiled: 128-byte swizzle, zeros outside), for the emulation
// MapOnCpu.
struct alignas(64) MatrixMap {
  uint64_t opaque[16] = {};
};

#if !defined(__CUDACC__)
static_assert(sizeof(on_cpu::MatrixFacts) <= sizeof(MatrixMap));
inline MatrixMap MapOnCpu(const void* base, int64_t rows, int64_t cols, int64_t box_rows) {
  const on_cpu::MatrixFacts facts{static_cast<const uint8_t*>(base), rows, cols, box_rows};
  MatrixMap map;
  std::memcpy(map.opaque, &facts, sizeof(facts));
  return map;
}
#endif

#if CAIRN_HAS_SM90

#if defined(__CUDACC__)
CAIRN_DEVICE uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
#endif

// The first address of a multiple of 1024 bytes in shared memory.
CAIRN_DEVICE uint8_t* AlignShared1024(uint8_t* p) {
#if defined(__CUDACC__)
  return p + (-SharedAddress(p) & 1023);
#else
  return p + (-reinterpret_cast<uintptr_t>(p) & 1023);
#endif
}

// ---- barriers ----

// A phase needs `arrivals` arrivals. Before others use the barrier: FenceBarriers, and a barrier of
// the block.
CAIRN_DEVICE void InitialiseBarrier(uint64_t* barrier, unsigned arrivals) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
#else
  on_cpu::InitialiseBarrier(barrier, arrivals);
#endif
}
CAIRN_DEVICE void FenceBarriers() {
#if defined(__CUDACC__)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
CAIRN_DEVICE void Arrive(uint64_t* barrier) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
#else
  on_cpu::Arrive(barrier, 0);
#endif
}
// Also announces bytes that copies bring in this phase.
CAIRN_DEVICE void ArriveExpecting(uint64_t* barrier, uint32_t bytes) {
#if defined(__CUDACC__)
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
#else
  on_cpu::Arrive(barrier, bytes);
#endif
}
// Returns when the phase of this parity (0 first, then in turn) has ended.
CAIRN_DEVICE void WaitPhase(uint64_t* barrier, unsigned parity) {
#if defined(__CUDACC__)
  uint32_t ended = 0;
  do {
    asm volatile(
        "{\n.reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n}"
        : "=r"(ended)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  } while (ended == 0);
#else
  on_cpu::WaitPhase(barrier, parity);
#endif
}
// A barrier for some threads of the block: `threads` of them, a multiple of 32. Barrier 0 is that
// of all.
CAIRN_DEVICE void NamedBarrier(unsigned id, unsigned threads) {
#if defined(__CUDACC__)
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  on_cpu::NamedBarrier(id, threads);
#endif
}
// The bytes that this thread wrote to shared memory are visible to products and bulk copies behind
// the next barrier.
CAIRN_DEVICE void FenceForProducts() {
#if defined(__CUDACC__)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A warp group's registers for each thread, a multiple of 8. All its threads call it.
template <int kRegisters>
CAIRN_DEVICE void ClaimRegisters() {
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
CAIRN_DEVICE void ReleaseRegisters() {
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// ---- bulk copies ----

// A box of 64 columns at (row, col) into lines of 128 bytes, whose chunks of 16 bytes are swizzled:
// chunk c of line l lies at place c ^ l % 8. `to` is aligned to 1024 bytes, or follows whole groups
// of 8 lines. The barrier counts the bytes, also those outside of the matrix, which are zero.
CAIRN_DEVICE void CopyBox(uint8_t* to, const MatrixMap* map, int row, int col, uint64_t* barrier) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(col), "r"(row), "r"(SharedAddress(barrier))
      : "memory");
#else
  on_cpu::BoxCopy copy{to, {}, row, col};
  std::memcpy(&copy.matrix, map->opaque, sizeof(copy.matrix));
  const on_cpu::MatrixFacts& m = copy.matrix;
  // Sanitizers see these accesses: the target means nothing until the copy has landed, and the
  // source must exist.
  for (int64_t i = 0; i < m.box_rows * 16; ++i) {
    reinterpret_cast<volatile uint64_t*>(to)[i] = ~uint64_t{0};
  }
  for (int64_t r = row; r < row + m.box_rows && r < m.rows; ++r) {
    const volatile uint8_t* const line = m.base + (r * m.cols + col) * 2;
    (void)line[0];
    (void)line[127];
  }
  on_cpu::IssueBoxCopy(copy, barrier);
#endif
}

// ---- products by a warp group ----

// A matrix in shared memory in swizzled lines of 128 bytes.
//
//   columns of sums in lines    line r of the matrix is row r (the next 8 lines: `group` bytes on);
//                               a product reads 16 neighbouring columns of it
//   rows of sums in lines       line k holds 64 columns of row k (8 lines further: `group` bytes
//                               on, 64 columns further: `block` bytes on); a product reads 16 rows
struct SharedMatrix {
#if defined(__CUDACC__)
  uint64_t bits;
#else
  uintptr_t start;
  uintptr_t block, group;

  // The number `byte` bytes behind line `line` of its 8, as the swizzle has placed it.
  static float At(uintptr_t address) {
    address ^= (address >> 7 & 7) << 4;
    return FromHalf(*reinterpret_cast<const uint16_t*>(address));
  }
  float InRow(unsigned row, unsigned k) const {
    return At(start + row / 8 * group + row % 8 * 128 + k * 2);
  }
  float InColumn(unsigned k, unsigned n) const {
    return At(start + n / 64 * block + k / 8 * group + k % 8 * 128 + n % 64 * 2);
  }
#endif
};
CAIRN_DEVICE SharedMatrix MatrixAt(const uint8_t* start, uint32_t block, uint32_t group) {
#if defined(__CUDACC__)
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return {kSwizzle128 | uint64_t{(SharedAddress(start) & 0x3ffff) >> 4} |
          uint64_t{block >> 4} << 16 | uint64_t{group >> 4} << 32};
#else
  return {reinterpret_cast<uintptr_t>(start), block, group};
#endif
}

#if defined(__CUDACC__)
#define CAIRN_SUMS_2(c, n)                                                       \
  "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]), "+f"(c[n + 1][0]), \
      "+f"(c[n + 1][1]), "+f"(c[n + 1][2]), "+f"(c[n + 1][3])
#define CAIRN_SUMS_8(c, n) \
  CAIRN_SUMS_2(c, n), CAIRN_SUMS_2(c, n + 2), CAIRN_SUMS_2(c, n + 4), CAIRN_SUMS_2(c, n + 6)
#endif

// The products of halves that a warp group has under way. Between Begin and Wait nobody touches the
// sums, the left factors in registers, or the shared memory that products read (the emulation reads
// and adds only in Wait, and the sums are NaN until then). Sums are those of MultiplyAdd, for 16
// rows a warp: c[n] has columns 8 n to 8 n + 7.
class GroupProducts {
 public:
  CAIRN_DEVICE void Begin() {
#if defined(__CUDACC__)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  }

  // c = a b^T, or += if `add`, for 64 rows, 128 columns and 16 columns of both factors.
  CAIRN_DEVICE void MultiplyShared(float (&c)[16][4], const SharedMatrix& a, const SharedMatrix& b,
                                   bool add) {
#if defined(__CUDACC__)
    asm volatile(
        "{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, more, 1, 1, 0, 0;\n}"
        : CAIRN_SUMS_8(c, 0), CAIRN_SUMS_8(c, 8)
        : "l"(a.bits), "l"(b.bits), "r"(add ? 1 : 0));
#else
    Open(&c[0][0], 64);
    const unsigned row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    open_.push_back([&c, a, b, add, row, t] {
      float left[2][16];
      for (unsigned k = 0; k < 16; ++k) {
        for (unsigned r = 0; r < 2; ++r) left[r][k] = a.InRow(row + 8 * r, k);
      }
      for (unsigned n = 0; n < 16; ++n) {
        for (unsigned i = 0; i < 2; ++i) {
          float right[16];
          for (unsigned k = 0; k < 16; ++k) right[k] = b.InRow(8 * n + 2 * t + i, k);
          for (unsigned r = 0; r < 2; ++r) {
            float& sum = c[n][2 * r + i];
            sum = Dot(add ? sum : 0.0f, left[r], right);
          }
        }
      }
    });
#endif
  }

  // c += a b, where a is the left factor of MultiplyAdd in each warp, and b has rows of sums in
  // lines. 64 or 128 columns.
  template <int kTiles>
  CAIRN_DEVICE void MultiplyRegisters(float (&c)[kTiles][4], const uint32_t (&a)[4],
                                      const SharedMatrix& b) {
    static_assert(kTiles == 8 || kTiles == 16);
#if defined(__CUDACC__)
    if constexpr (kTiles == 16) {
      asm volatile(
          "{\n.reg .pred more;\nsetp.ne.b32 more, %69, 0;\n"
          "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
          "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
          "{%64, %65, %66, %67}, %68, more, 1, 1, 1;\n}"
          : CAIRN_SUMS_8(c, 0), CAIRN_SUMS_8(c, 8)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(1));
    } else {
      asm volatile(
          "{\n.reg .pred more;\nsetp.ne.b32 more, %37, 0;\n"
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
          "{%32, %33, %34, %35}, %36, more, 1, 1, 1;\n}"
          : CAIRN_SUMS_8(c, 0)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(1));
    }
#else
    Open(&c[0][0], kTiles * 4);
    struct Rows {
      float numbers[2][16];
    } left;
    on_cpu::HandOver(a, sizeof(a));
    for (unsigned of = 0; of < 4; ++of) {
      uint32_t words[4];
      on_cpu::Take(threadIdx.x % 32 / 4 * 4 + of, words, sizeof(words));
      for (unsigned w = 0; w < 4; ++w) {
        for (unsigned i = 0; i < 2; ++i) {
          left.numbers[w % 2][w / 2 * 8 + 2 * of + i] = FromHalf(words[w] >> 16 * i & 0xffff);
        }
      }
    }
    const unsigned t = threadIdx.x % 4;
    open_.push_back([&c, left, b, t] {
      for (unsigned n = 0; n < kTiles; ++n) {
        for (unsigned i = 0; i < 2; ++i) {
          float right[16];
          for (unsigned k = 0; k < 16; ++k) right[k] = b.InColumn(k, 8 * n + 2 * t + i);
          for (unsigned r = 0; r < 2; ++r) {
            c[n][2 * r + i] = Dot(c[n][2 * r + i], left.numbers[r], right);
          }
        }
      }
    });
#endif
  }

  // All products since the last one are a group.
  CAIRN_DEVICE void Commit() {
#if defined(__CUDACC__)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    for (auto& product : open_) committed_.push_back(std::move(product));
    open_.clear();
    started_.clear();
#endif
  }

  // Until all groups have ended.
  CAIRN_DEVICE void Wait() {
#if defined(__CUDACC__)
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#else
    for (const auto& product : committed_) product();
    committed_.clear();
#endif
  }

#if !defined(__CUDACC__)

 private:
  // The first product of a group hides what the sums were.
  void Open(float* sums, size_t count) {
    for (const float* other : started_) {
      if (other == sums) return;
    }
    started_.push_back(sums);
    open_.push_back([sums, before = std::vector<float>(sums, sums + count)] {
      for (size_t i = 0; i < before.size(); ++i) sums[i] = before[i];
    });
    for (size_t i = 0; i < count; ++i) sums[i] = NAN;
  }
  static float Dot(float sum, const float (&a)[16], const float (&b)[16]) {
    double exact = sum;
    for (unsigned k = 0; k < 16; ++k) exact += double{a[k]} * double{b[k]};
    return on_cpu::TowardsZero(exact);
  }

  std::vector<std::function<void()>> open_, committed_;
  std::vector<const float*> started_;
#endif
};

#endif  // CAIRN_HAS_SM90

}  // namespace cairn::kernels::cuda
