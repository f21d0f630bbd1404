// Kernels of the selections of tokens.

#include "kernels/cuda/marks.cuh"
#include "kernels/cuda/row_scores.cuh"
#include "kernels/cuda/score_rows.cuh"
#include "kernels/cuda/window_scores.cuh"
