// The mixing weights that a site's leave_site needs, from the projections of the streams that entered it.
//
// A site's coefficients lie as 24 floats: pre [4], post [4], mix [4 old, 4 new]. Sums run in a fixed order, so a row's
// bits depend on that row alone.

#define STREAMS 4
#define MIXES 24
#define PARTIAL 25  // 24 dot products and the sum of squares

struct Site {
    const float* partial;  // fp32 [rows, blocks, 25], of 128 columns each
    const float* base;     // fp32 [24]
    const float* scale;    // fp32 [3]
    float* coefficients;   // fp32 [rows, 24]
    int rows, blocks, iterations;
    float eps, norm_eps;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// One warp: lane 4 o + s (below 16) holds mix[o][s] before Sinkhorn; divides rows and columns by their sums.
__device__ __forceinline__ float sinkhorn(float raised, int iterations, float eps) {
    const unsigned all = 0xffffffffu;
    const auto row_sum = [&](float v) {
        v += __shfl_xor_sync(all, v, 1);
        return v + __shfl_xor_sync(all, v, 2);
    };
    const auto column_sum = [&](float v) {
        v += __shfl_xor_sync(all, v, 4);
        return v + __shfl_xor_sync(all, v, 8);
    };
    float top = fmaxf(raised, __shfl_xor_sync(all, raised, 1));
    top = fmaxf(top, __shfl_xor_sync(all, top, 2));
    float v = expf(raised - top);
    v = __fdividef(v, row_sum(v)) + eps;
    v = __fdividef(v, column_sum(v) + eps);
    for (int i = 1; i < iterations; i++) {
        v = __fdividef(v, row_sum(v) + eps);
        v = __fdividef(v, column_sum(v) + eps);
    }
    return v;
}

// -> post and mix of all rows. One block of whole warps, a warp a row.
__device__ __forceinline__ void make_coefficients(const Site& site) {
    const unsigned all = 0xffffffffu;
    const int lane = threadIdx.x & 31;
    for (int row = threadIdx.x >> 5; row < site.rows; row += blockDim.x >> 5) {
        const float* from = site.partial + (size_t)row * site.blocks * PARTIAL + min(lane, PARTIAL - 1);
        float projected = 0.0f;  // lane m: projection m
#pragma unroll 8
        for (int i = 0; i < site.blocks; i++) projected += from[i * PARTIAL];
        const float square = __shfl_sync(all, projected, MIXES);
        const float inverse = rsqrtf(square / (STREAMS * site.blocks * 128) + site.norm_eps);
        const int m = 8 + (lane & 15);
        const float mix = __shfl_sync(all, projected, m);
        const float post = __shfl_sync(all, projected, 4 + (lane & 3));
        const float value =
            sinkhorn(mix * inverse * site.scale[2] + site.base[m], site.iterations, site.eps);
        float* out = site.coefficients + row * MIXES;
        if (lane < 16) out[8 + lane] = value;
        if (lane < 4) out[4 + lane] = 2.0f * sigmoid(post * inverse * site.scale[1] + site.base[4 + lane]);
    }
}
