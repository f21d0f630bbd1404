// Kernels of attention.

#include "kernels/cuda/attention_sm90.cuh"
#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/prompt_attention.cuh"
