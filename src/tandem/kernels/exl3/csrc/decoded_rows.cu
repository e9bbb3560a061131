// EXL3 products of few rows for every codebook and rate: weights decoded to fp16 in registers, fp32 sums.
//
// Pairs, jobs and groups are those of exl3_rows.cu, and so are the kernels before and after. A row enters as two fp16
// halves, high and low, of its values times a power of two: together more exact than fp32 sums need.
//
// The bits of a row depend neither on the other rows nor on their number: how k is cut into splits follows from the
// matrix alone, and a split's sums are added in one order: every WARPS-th k-tile by the matrix unit, then the warps.
//
// Macros: FORMS (decoded.cuh), ROWS (1, 2, 4, 8, 16: most pairs of a job), TILES (n-tiles of 16 columns a warp holds), WARPS,
// DEPTH (loads in flight), BLOCKS (a processor, at least).

#include "decoded.cuh"

#ifndef ROWS
#define ROWS 1
#endif
#ifndef TILES
#define TILES 8
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef DEPTH
#define DEPTH 2
#endif
#ifndef BLOCKS
#define BLOCKS 2
#endif
#define PASSES ((ROWS + 7) / 8)

// Rows of a job -> their high and low halves in shared memory, for k-tiles [first, end). The power of two puts the
// row's largest magnitude between 2^12 and 2^13.
__device__ __forceinline__ void split_rows(__half* shared, int stride, const float* rotated, const float* peaks,
                                           int pairs, int inputs, int first, int end, float* scale_out,
                                           float* scales, bool publish) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, blocks = inputs / ROTATION;
    for (int pair = warp; pair < pairs; pair += WARPS) {
        float peak = 0.0f;
        for (int i = lane; i < blocks; i += 32) peak = fmaxf(peak, peaks[(size_t)pair * blocks + i]);
        peak = warp_max(peak);
        int exponent;
        frexpf(peak, &exponent);
        if (lane == 0) scales[pair] = peak > 0.0f ? ldexpf(1.0f, max(exponent, -100) - 13) : 1.0f;
    }
    __syncthreads();
    const int width = (end - first) * 16, pieces = (width + ROTATION - 1) / ROTATION;
    for (int item = warp; item < pairs * pieces; item += WARPS) {
        const int pair = item / pieces, at = (item % pieces) * ROTATION + 4 * lane;
        if (at >= width) continue;
        const float inverse = 1.0f / scales[pair];
        const float4 v = *(const float4*)(rotated + (size_t)pair * inputs + first * 16 + at);
        const float own[4] = {v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse};
        __half high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            high[i] = __float2half_rn(own[i]);
            low[i] = __float2half_rn(own[i] - __half2float(high[i]));
        }
        *(uint2*)(shared + (2 * pair) * stride + at) = *(const uint2*)high;
        *(uint2*)(shared + (2 * pair + 1) * stride + at) = *(const uint2*)low;
    }
    __syncthreads();
    if (publish && threadIdx.x < pairs) scale_out[threadIdx.x] = scales[threadIdx.x];
}

//   MMA row   0..7 high halves of pairs 0..7,   8..15 low halves of the same pairs
template <int CODEBOOK, int HALVES, class Prepare>
__device__ __forceinline__ void multiply(float (&acc)[PASSES][TILES][2][4], const u32* matrix, const __half* shared,
                                         int stride, int pairs, int first, int end, int n_tiles, int n_tile,
                                         const Prepare& prepare) {
    using Tile = Ring<HALVES>;
    const Tile ring;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane & 3, r = lane >> 2;
    const size_t step = (size_t)WARPS * n_tiles * Tile::words;
    const u32* tiles = matrix + ((size_t)(first + warp) * n_tiles + n_tile) * Tile::words;
    const int steps = (end - first - warp + WARPS - 1) / WARPS;
    u32 next[DEPTH][TILES][Tile::size];
    const auto load = [&](u32 (&to)[TILES][Tile::size]) {
#pragma unroll
        for (int i = 0; i < TILES; i++) ring.load(to[i], tiles + i * Tile::words);
        tiles += step;
    };
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        if (d < steps) load(next[d]);
    prepare();

    const __half* rows[PASSES];
    u32 live[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const int pair = p * 8 + r;
        rows[p] = shared + 2 * min(pair, ROWS - 1) * stride + warp * 16 + 2 * q;
        live[p] = pair < pairs ? 0xffffffffu : 0u;
    }
    const auto compute = [&](u32 (&from)[TILES][Tile::size], bool more) {
        u32 a[TILES][Tile::size];
#pragma unroll
        for (int i = 0; i < TILES; i++) ring.align(a[i], from[i]);
        if (more) load(from);
        u32 A[PASSES][4];
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            A[p][0] = *(const u32*)rows[p] & live[p];
            A[p][1] = *(const u32*)(rows[p] + stride) & live[p];
            A[p][2] = *(const u32*)(rows[p] + 8) & live[p];
            A[p][3] = *(const u32*)(rows[p] + stride + 8) & live[p];
            rows[p] += WARPS * 16;
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            u32 b[4];
            decode<CODEBOOK, HALVES>(b, a[i]);
#pragma unroll
            for (int p = 0; p < PASSES; p++) {
                mma(acc[p][i][0], A[p], b[0], b[1]);
                mma(acc[p][i][1], A[p], b[2], b[3]);
            }
        }
    };
    int done = 0;
    for (; done + DEPTH <= steps; done += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) compute(next[d], done + d + DEPTH < steps);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        if (done + d < steps) compute(next[d], false);
}

// As product_rows of exl3_rows.cu, except: form_of int32 [groups, matrices], numbers of FORMS; offsets u64 [groups,
// matrices], addresses of fp32 [outputs] to be added to a product, or 0.
// -> partial fp32 [splits, groups * pairs, pitch], scale [groups * pairs], a power of two.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    decoded_rows(const unsigned long long* trellis, const int* form_of, const int* outputs_of,
                 const unsigned long long* offsets, const float* rotated, const float* peaks, const int* job_start,
                 const int* job_matrix, const int* job_count, float* partial, float* scale, int inputs, int pitch,
                 int matrices, int pair_capacity, int groups, int fixed_jobs) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ float scales[ROWS];
    let_next_begin();
    if (!fixed_jobs) wait_for_earlier();
    const int most_jobs = gridDim.z / groups, group = blockIdx.z / most_jobs;
    const int job = *job_count - 1 - blockIdx.z % most_jobs;
    if (job < 0) return;
    const int matrix = group * matrices + job_matrix[job];
    const int outputs = outputs_of[matrix];
    if (blockIdx.x * TILES * 16 >= outputs) return;
    const int k_tiles = inputs / 16, per_split = (k_tiles + gridDim.y - 1) / gridDim.y;
    const int first = blockIdx.y * per_split, end = min(k_tiles, first + per_split);
    const int stride = per_split * 16 + 8;  // + 8: rows in different banks
    const int pair = group * pair_capacity + job_start[job];
    const int pairs = min(job_start[job + 1] - job_start[job], ROWS);

    __half* shared = (__half*)memory;
    const auto prepare = [&] {
        if (fixed_jobs) wait_for_earlier();
        split_rows(shared, stride, rotated + (size_t)pair * inputs, peaks + (size_t)pair * (inputs / ROTATION), pairs,
                   inputs, first, end, scale + pair, scales, blockIdx.x == 0 && blockIdx.y == 0);
    };
    float acc[PASSES][TILES][2][4];
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[p][i][h][j] = 0.0f;
    const u32* tiles = (const u32*)trellis[matrix];
    const int n_tiles = outputs / 16, n_tile = blockIdx.x * TILES;
#define F(number, codebook, halves)                                                                               \
    case number:                                                                                                  \
        multiply<codebook, halves>(acc, tiles, shared, stride, pairs, first, end, n_tiles, n_tile, prepare);      \
        break;
    switch (form_of[matrix]) { FORMS }
#undef F

    // Sums of the halves, then of the warps in order.
    constexpr int columns = TILES * 16;
    const int q = threadIdx.x & 3, r = (threadIdx.x & 31) >> 2, warp = threadIdx.x >> 5;
    __syncthreads();
    float* totals = (float*)memory;  // [WARPS][pairs][columns]
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int column = i * 16 + h * 8 + 2 * q, row = p * 8 + r;
                const float* c = acc[p][i][h];
                if (row < pairs)
                    *(float2*)(totals + (warp * pairs + row) * columns + column) = make_float2(c[0] + c[2], c[1] + c[3]);
            }
    __syncthreads();
    const float* offset = (const float*)offsets[matrix];
    for (int i = threadIdx.x; i < pairs * columns; i += WARPS * 32) {
        const int row = i / columns, output = blockIdx.x * columns + i % columns;
        float total = totals[i];
#pragma unroll
        for (int w = 1; w < WARPS; w++) total += totals[w * pairs * columns + i];
        if (offset && blockIdx.y == 0) total += offset[output] / scales[row];
        partial[((size_t)blockIdx.y * groups * pair_capacity + pair + row) * pitch + output] = total;
    }
}
