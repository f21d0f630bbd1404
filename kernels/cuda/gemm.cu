// Products of matrices.

#include "kernels/cuda/gemm.cuh"
