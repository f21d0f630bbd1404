// How the product of two matrices is cut into blocks that fit into registers. Each number of c is
// computed in one block, so no cut changes a number.

namespace cairn::kernels::CAIRN_KERNEL_NS {

template <typename Block, int kRows, int kVecs, typename Args>
static void RunRegisterBlock(int64_t rows, const Args& args) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return Block::template Run<kRows, kVecs>(args);
    return RunRegisterBlock<Block, kRows - 1, kVecs>(rows, args);
  }
}

// c[m][n] of a[m][k] and b[k][n], as Block::Run<rows, vectors> computes c[rows][vectors * kWidth].
// A block has at most kMaxRows rows and kMaxVecs vectors. n must be a multiple of kWidth. `args`
// has a, lda, b, c and ldc, and whatever else Block wants.
template <typename Block, typename Args>
static void RunRegisterBlocks(int64_t m, int64_t n, const Args& args) {
  constexpr int64_t kFull = Block::kMaxVecs * Block::kWidth;
  for (int64_t j = 0; j < n;) {
    const bool full = n - j >= kFull;
    for (int64_t i = 0; i < m; i += Block::kMaxRows) {
      Args block = args;
      block.a += i * args.lda;
      block.b += j;
      block.c += i * args.ldc + j;
      const int64_t rows = m - i < Block::kMaxRows ? m - i : Block::kMaxRows;
      if (full) {
        RunRegisterBlock<Block, Block::kMaxRows, Block::kMaxVecs>(rows, block);
      } else {
        RunRegisterBlock<Block, Block::kMaxRows, 1>(rows, block);
      }
    }
    j += full ? kFull : Block::kWidth;
  }
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
