// Kernels of the forward pass that neither multiply matrices nor attend.

#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/weights.cuh"
