// Kernels of the codecs whose heads need no transform.

#include "kernels/cuda/cachegen_decode.cuh"
#include "kernels/cuda/cachegen_encode.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/int4.cuh"
#include "kernels/cuda/int8.cuh"
#include "kernels/cuda/lattice.cuh"
#include "kernels/cuda/mixed.cuh"
#include "kernels/cuda/raw.cuh"
