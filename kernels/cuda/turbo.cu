// Kernels of turbo, apart since they take the longest to compile.

#include "kernels/cuda/turbo.cuh"
