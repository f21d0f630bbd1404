// Kernels that move and check bytes.

#include "kernels/cuda/pages.cuh"
#include "kernels/cuda/xxh3.cuh"
