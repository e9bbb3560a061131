// One output of a small fp16 matrix for few rows, by one warp: y fp32 [rows, N] = x fp32 [rows, K] . W fp16 [N, K]^T.
// fp32 sums in an order that does not depend on the number of rows. K a multiple of 8.
// Needs overlap.cuh.

#include <cuda_fp16.h>

template <int MOST>
__device__ __forceinline__ void dense_row(const __half* weight, const float* x, float* y, int n, int N, int K,
                                          int rows) {
    constexpr int AHEAD = 4;
    const int lane = threadIdx.x & 31;
    const __half* of_output = weight + (size_t)n * K;
    uint4 next[AHEAD];
    const auto load = [&](uint4& to, int k) {
        if (n < N && k < K) to = __ldg((const uint4*)(of_output + k));
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load(next[i], 8 * lane + 256 * i);
    wait_for_earlier();
    if (n >= N) return;
    float acc[MOST];
#pragma unroll
    for (int r = 0; r < MOST; r++) acc[r] = 0.0f;
    for (int first = 8 * lane; first < K; first += 256 * AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int k = first + 256 * i;
            if (k >= K) break;
            const uint4 packed = next[i];
            load(next[i], k + 256 * AHEAD);
            const __half2* h = (const __half2*)&packed;
            const float2 w0 = __half22float2(h[0]), w1 = __half22float2(h[1]), w2 = __half22float2(h[2]),
                         w3 = __half22float2(h[3]);
#pragma unroll
            for (int r = 0; r < MOST; r++) {
                if (r >= rows) break;
                const float4 a = *(const float4*)(x + (size_t)r * K + k);
                const float4 b = *(const float4*)(x + (size_t)r * K + k + 4);
                acc[r] = fmaf(w0.x, a.x, acc[r]);
                acc[r] = fmaf(w0.y, a.y, acc[r]);
                acc[r] = fmaf(w1.x, a.z, acc[r]);
                acc[r] = fmaf(w1.y, a.w, acc[r]);
                acc[r] = fmaf(w2.x, b.x, acc[r]);
                acc[r] = fmaf(w2.y, b.y, acc[r]);
                acc[r] = fmaf(w3.x, b.z, acc[r]);
                acc[r] = fmaf(w3.y, b.w, acc[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < MOST; r++) {
        if (r >= rows) break;
        float total = acc[r];
#pragma unroll
        for (int step = 16; step; step >>= 1) total += __shfl_xor_sync(0xffffffffu, total, step);
        if (lane == 0) y[(size_t)r * N + n] = total;
    }
}
