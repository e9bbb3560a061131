// Small fp16 matrices times few rows: y fp32 [rows, N] = x fp32 [rows, K] . W fp16 [N, K]^T, fp32 sums in an
// order that does not depend on the number of rows. K a multiple of 8. Macro ROWS: most rows.
//
// Grid: (ceil(N / 2)), 256 threads: four warps share an output and add up in order. One block more makes a site's
// coefficients.

#include <cuda_fp16.h>

#include "../../csrc/overlap.cuh"
#include "../../hyper_connection/csrc/coefficients.cuh"

#ifndef ROWS
#define ROWS 1
#endif

extern "C" __global__ void __launch_bounds__(256)
    dense_rows(const __half* weight, const float* x, float* y, int N, int K, int rows, const float* site_partial,
               const float* site_base, const float* site_scale, float* coefficients, int site_blocks, int iterations,
               float eps, float norm_eps) {
    __shared__ float parts[8][ROWS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = blockIdx.x * 2 + (warp >> 2);
    float acc[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) acc[r] = 0.0f;
    let_next_begin();
    if (blockIdx.x * 2 >= N) {
        wait_for_earlier();
        make_coefficients({site_partial, site_base, site_scale, coefficients, rows, site_blocks, iterations, eps,
                           norm_eps});
        return;
    }
    uint4 ahead[4];
    const int first = ((warp & 3) * 32 + lane) * 8;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (n < N && first + 1024 * i < K) ahead[i] = __ldg((const uint4*)(weight + (size_t)n * K + first + 1024 * i));
    wait_for_earlier();
    if (n < N) {
#pragma unroll 4
        for (int i = 0; first + 1024 * i < K; i++) {
            const int k = first + 1024 * i;
            const uint4 packed = i < 4 ? ahead[i & 3] : *(const uint4*)(weight + (size_t)n * K + k);
            const __half2* h = (const __half2*)&packed;
            float w[8];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 pair = __half22float2(h[i]);
                w[2 * i] = pair.x;
                w[2 * i + 1] = pair.y;
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r < rows) {
                    const float4 a = *(const float4*)(x + (size_t)r * K + k);
                    const float4 b = *(const float4*)(x + (size_t)r * K + k + 4);
                    acc[r] = fmaf(w[0], a.x, acc[r]);
                    acc[r] = fmaf(w[1], a.y, acc[r]);
                    acc[r] = fmaf(w[2], a.z, acc[r]);
                    acc[r] = fmaf(w[3], a.w, acc[r]);
                    acc[r] = fmaf(w[4], b.x, acc[r]);
                    acc[r] = fmaf(w[5], b.y, acc[r]);
                    acc[r] = fmaf(w[6], b.z, acc[r]);
                    acc[r] = fmaf(w[7], b.w, acc[r]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int step = 16; step; step >>= 1) acc[r] += __shfl_xor_sync(0xffffffffu, acc[r], step);
        if (lane == 0) parts[warp][r] = acc[r];
    }
    __syncthreads();
    const int which = threadIdx.x / ROWS, r = threadIdx.x % ROWS;
    if (which < 2 && r < rows && blockIdx.x * 2 + which < N) {
        const int w = which * 4;
        y[(size_t)r * N + blockIdx.x * 2 + which] =
            (parts[w][r] + parts[w + 1][r]) + (parts[w + 2][r] + parts[w + 3][r]);
    }
}
