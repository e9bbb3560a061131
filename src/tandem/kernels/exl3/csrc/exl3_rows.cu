// EXL3 (MUL1) products for few rows: rotate and quantize -> integer product -> rotate back.
//
// A *pair* is one row meeting one matrix. Pairs of a matrix are consecutive and form a *job*; a dense linear
// is one job whose pairs are the rows, experts are one job each. Every matrix of a launch has the same shape.
//
// Macros: BITS (1..8), TILES (n-tiles of 16 columns a block), WARPS, PASSES (8 pairs each; 1 or 2).

#include "exl3.cuh"

#ifndef BITS
#define BITS 3
#endif
#ifndef TILES
#define TILES 4
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef PASSES
#define PASSES 1
#endif
#define PAIRS_PER_PASS 8
#define MAX_PAIRS (PASSES * PAIRS_PER_PASS)
#define WORDS (8 * BITS)  // 32-bit words of a tile
#define THREE_WORDS (BITS >= 5)  // shift + 16 + 7 BITS can pass 64 bits

// x fp32 [rows, inputs] -> high, low int8 [pairs, inputs], scale fp32 [pairs], sum int32 [pairs].
// One block a pair; suh is fp16 [matrices, inputs].
extern "C" __global__ void rotate_rows(const float* __restrict__ x, const __half* __restrict__ suh,
                                       const int* __restrict__ pair_row, const int* __restrict__ pair_matrix,
                                       const int* __restrict__ pair_count, i8* __restrict__ high,
                                       i8* __restrict__ low, float* __restrict__ scale, int* __restrict__ sum,
                                       int inputs) {
    extern __shared__ __align__(16) float rotated[];
    __shared__ float scratch[32];
    const int pair = blockIdx.x;
    if (pair >= *pair_count) return;
    const float* row = x + (size_t)pair_row[pair] * inputs;
    const __half* signs = suh + (size_t)pair_matrix[pair] * inputs;
    const int lane = threadIdx.x & 31;
    for (int block = threadIdx.x >> 5; block < inputs / ROTATION; block += blockDim.x >> 5) {
        const int at = block * ROTATION + 4 * lane;
        const float4 loaded = *(const float4*)(row + at);
        float v[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] *= __half2float(signs[at + i]);
        hadamard128(v);
        *(float4*)(rotated + at) = make_float4(v[0], v[1], v[2], v[3]);
    }
    __syncthreads();
    const size_t out = (size_t)pair * inputs;
    quantize_row(rotated, inputs, high + out, low + out, scale + pair, sum + pair, scratch);
}

__device__ __forceinline__ void mma(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The bytes of position p's codeword; a holds the lane's bits from its first window on, first bit on top.
template <int P>
__device__ __forceinline__ u32 codeword(const u32 (&a)[3]) {
    constexpr int word = (P * BITS) / 32, offset = (P * BITS) % 32;
    u32 window;
    if constexpr (offset + 16 <= 32) window = (a[word] >> (16 - offset)) & 0xffffu;
    else window = __funnelshift_l(a[word + 1], a[word], offset) >> 16;
    return window * 0x83DCD12Du;
}

// trellis: address of each matrix's tiles, [inputs/16, outputs/16, WORDS] u32. job_start [jobs + 1] in pairs,
// job_matrix [jobs]. partial: int32 [splits, pairs, 2, outputs], every element of live pairs is written.
// Grid: (outputs / (16 TILES), splits, most jobs); WARPS warps, each takes every WARPS-th k-tile of its split.
//
//   MMA row   0..7 high bytes of pairs 0..7,   8..15 low bytes of the same pairs
//   MMA k     four times each input row: the four bytes of a codeword meet the same activation
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    product_rows(const unsigned long long* __restrict__ trellis, const i8* __restrict__ high,
                 const i8* __restrict__ low, const int* __restrict__ job_start,
                 const int* __restrict__ job_matrix, const int* __restrict__ job_count,
                 int* __restrict__ partial, int inputs, int outputs, int pair_capacity) {
    extern __shared__ __align__(16) i8 shared[];
    const int job = blockIdx.z;
    if (job >= *job_count) return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane & 3, r = lane >> 2;
    const int k_tiles = inputs / 16, n_tiles = outputs / 16;
    const int per_split = (k_tiles + gridDim.y - 1) / gridDim.y;
    const int first = blockIdx.y * per_split, end = min(k_tiles, first + per_split);
    const int width = (end - first) * 16, stride = per_split * 16 + 16;  // + 16: rows in different banks
    const int pairs_begin = job_start[job];
    const int pairs = min(job_start[job + 1] - pairs_begin, MAX_PAIRS);

    for (int row = warp; row < 2 * MAX_PAIRS; row += WARPS) {
        const int pair = row % MAX_PAIRS;
        const i8* from = (row < MAX_PAIRS ? high : low) + (size_t)(pairs_begin + pair) * inputs + first * 16;
        for (int i = lane * 16; i < width; i += 32 * 16)
            *(int4*)(shared + row * stride + i) = pair < pairs ? *(const int4*)(from + i) : make_int4(0, 0, 0, 0);
    }

    // Lane t owns positions 8 t .. 8 t + 7; its first window begins at bit 8 t BITS + BITS - 16 of the ring.
    const int start = 8 * lane * BITS + BITS - 16;
    const int shift = start & 31;
    const int w0 = ((start >> 5) + WORDS) % WORDS, w1 = (w0 + 1) % WORDS, w2 = (w0 + 2) % WORDS;
    const u32* tiles = (const u32*)trellis[job_matrix[job]] +
                       ((size_t)(first + warp) * n_tiles + blockIdx.x * TILES) * WORDS;
    const size_t step = (size_t)WARPS * n_tiles * WORDS;

    int acc[PASSES][TILES][2][4];
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[p][i][h][j] = 0;

    u32 next[TILES][3];
    const auto load = [&](const u32* at) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            next[i][0] = __ldg(at + i * WORDS + w0);
            next[i][1] = __ldg(at + i * WORDS + w1);
            next[i][2] = THREE_WORDS ? __ldg(at + i * WORDS + w2) : 0u;
        }
    };
    if (first + warp < end) load(tiles);
    __syncthreads();

    for (int tile = first + warp; tile < end; tile += WARPS) {
        u32 a[TILES][3];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            a[i][0] = __funnelshift_l(next[i][1], next[i][0], shift);
            a[i][1] = __funnelshift_l(next[i][2], next[i][1], shift);
            a[i][2] = THREE_WORDS ? next[i][2] << shift : 0u;
        }
        tiles += step;
        if (tile + WARPS < end) load(tiles);
        const i8* activations = shared + (tile - first) * 16 + 2 * q;
        u32 A[PASSES][8];
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            const i8* at_high = activations + (p * PAIRS_PER_PASS + r) * stride;
            const i8* at_low = at_high + MAX_PAIRS * stride;
            const u32 h0 = *(const u16*)at_high, h1 = *(const u16*)(at_high + 8);
            const u32 l0 = *(const u16*)at_low, l1 = *(const u16*)(at_low + 8);
            A[p][0] = __byte_perm(h0, 0, 0x0000); A[p][1] = __byte_perm(l0, 0, 0x0000);
            A[p][2] = __byte_perm(h0, 0, 0x1111); A[p][3] = __byte_perm(l0, 0, 0x1111);
            A[p][4] = __byte_perm(h1, 0, 0x0000); A[p][5] = __byte_perm(l1, 0, 0x0000);
            A[p][6] = __byte_perm(h1, 0, 0x1111); A[p][7] = __byte_perm(l1, 0, 0x1111);
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const u32 x0 = codeword<0>(a[i]), x1 = codeword<1>(a[i]), x2 = codeword<2>(a[i]),
                      x3 = codeword<3>(a[i]), x4 = codeword<4>(a[i]), x5 = codeword<5>(a[i]),
                      x6 = codeword<6>(a[i]), x7 = codeword<7>(a[i]);
#pragma unroll
            for (int p = 0; p < PASSES; p++) {
                mma(acc[p][i][0], A[p][0], A[p][1], A[p][2], A[p][3], x0, x1);
                mma(acc[p][i][1], A[p][0], A[p][1], A[p][2], A[p][3], x4, x5);
                mma(acc[p][i][0], A[p][4], A[p][5], A[p][6], A[p][7], x2, x3);
                mma(acc[p][i][1], A[p][4], A[p][5], A[p][6], A[p][7], x6, x7);
            }
        }
    }

    // Sums over the warps: integers, so any order gives the same.
    constexpr int columns = TILES * 16;
    __syncthreads();
    int* sums = (int*)shared;
    for (int i = threadIdx.x; i < 2 * MAX_PAIRS * columns; i += WARPS * 32) sums[i] = 0;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int column = i * 16 + h * 8 + 2 * q, pair = p * PAIRS_PER_PASS + r;
                if (pair < pairs) {
                    int* at = sums + (pair * 2) * columns + column;
                    atomicAdd(at, acc[p][i][h][0]);
                    atomicAdd(at + 1, acc[p][i][h][1]);
                    atomicAdd(at + columns, acc[p][i][h][2]);
                    atomicAdd(at + columns + 1, acc[p][i][h][3]);
                }
            }
    __syncthreads();
    for (int i = threadIdx.x; i < pairs * 2 * columns; i += WARPS * 32) {
        const size_t row = ((size_t)blockIdx.y * pair_capacity + pairs_begin) * 2 + i / columns;
        partial[row * outputs + blockIdx.x * columns + i % columns] = sums[i];
    }
}

// Rotated output of one pair: a warp holds 128 columns, four a lane.
__device__ __forceinline__ void finish_block(float (&v)[4], const int* __restrict__ partial,
                                             const __half* __restrict__ svh, int splits, int pair_capacity,
                                             int pair, int at, int outputs, float scale, int sum) {
    int4 high = make_int4(0, 0, 0, 0), low = high;
    for (int s = 0; s < splits; s++) {
        const int* row = partial + (((size_t)s * pair_capacity + pair) * 2) * outputs + at;
        const int4 h = *(const int4*)row, l = *(const int4*)(row + outputs);
        high.x += h.x; high.y += h.y; high.z += h.z; high.w += h.w;
        low.x += l.x; low.y += l.y; low.z += l.z; low.w += l.w;
    }
    v[0] = dequantize(high.x, low.x, scale, sum);
    v[1] = dequantize(high.y, low.y, scale, sum);
    v[2] = dequantize(high.z, low.z, scale, sum);
    v[3] = dequantize(high.w, low.w, scale, sum);
    hadamard128(v);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= __half2float(svh[at + i]);
}

// partial -> y fp32 [pairs, outputs]. Grid: (pairs, ceil(outputs / (128 warps of a block))).
extern "C" __global__ void finish_rows(const int* __restrict__ partial, const __half* __restrict__ svh,
                                       const int* __restrict__ pair_matrix, const int* __restrict__ pair_count,
                                       const float* __restrict__ scale, const int* __restrict__ sum,
                                       float* __restrict__ y, int outputs, int splits, int pair_capacity) {
    const int pair = blockIdx.x;
    if (pair >= *pair_count) return;
    const int block = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (block * ROTATION >= outputs) return;
    const int at = block * ROTATION + 4 * (threadIdx.x & 31);
    float v[4];
    finish_block(v, partial, svh + (size_t)pair_matrix[pair] * outputs, splits, pair_capacity, pair, at, outputs,
                 scale[pair], sum[pair]);
    *(float4*)(y + (size_t)pair * outputs + at) = make_float4(v[0], v[1], v[2], v[3]);
}

// Gate and up of an expert -> its down projection's input: silu(min(gate, limit)) * clamp(up, ±limit), times
// suh, rotated and quantized. One block a pair; the intermediate row stays in shared memory.
extern "C" __global__ void finish_gate_up(const int* __restrict__ gate, const int* __restrict__ up,
                                          const __half* __restrict__ gate_svh, const __half* __restrict__ up_svh,
                                          const __half* __restrict__ down_suh,
                                          const int* __restrict__ pair_matrix,
                                          const int* __restrict__ pair_count,
                                          const float* __restrict__ gate_scale, const int* __restrict__ gate_sum,
                                          const float* __restrict__ up_scale, const int* __restrict__ up_sum,
                                          i8* __restrict__ high, i8* __restrict__ low, float* __restrict__ scale,
                                          int* __restrict__ sum, int intermediate, int splits, int pair_capacity,
                                          float limit) {
    extern __shared__ __align__(16) float rotated[];
    __shared__ float scratch[32];
    const int pair = blockIdx.x;
    if (pair >= *pair_count) return;
    const size_t matrix = (size_t)pair_matrix[pair] * intermediate;
    for (int block = threadIdx.x >> 5; block < intermediate / ROTATION; block += blockDim.x >> 5) {
        const int at = block * ROTATION + 4 * (threadIdx.x & 31);
        float g[4], u[4];
        finish_block(g, gate, gate_svh + matrix, splits, pair_capacity, pair, at, intermediate, gate_scale[pair],
                     gate_sum[pair]);
        finish_block(u, up, up_svh + matrix, splits, pair_capacity, pair, at, intermediate, up_scale[pair],
                     up_sum[pair]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float a = fminf(g[i], limit), b = fminf(fmaxf(u[i], -limit), limit);
            g[i] = a / (1.0f + expf(-a)) * b * __half2float(down_suh[matrix + at + i]);
        }
        hadamard128(g);
        *(float4*)(rotated + at) = make_float4(g[0], g[1], g[2], g[3]);
    }
    __syncthreads();
    const size_t out = (size_t)pair * intermediate;
    quantize_row(rotated, intermediate, high + out, low + out, scale + pair, sum + pair, scratch);
}

// y fp32 [rows, outputs] = sum over a row's experts, in the order of its choices, of weight * down output.
// row_pair int32 [rows, choices] and row_weight fp32 [rows, choices]; grid: (rows, blocks of 128 columns).
extern "C" __global__ void finish_down(const int* __restrict__ partial, const __half* __restrict__ svh,
                                       const int* __restrict__ pair_matrix, const int* __restrict__ row_pair,
                                       const float* __restrict__ row_weight, const float* __restrict__ scale,
                                       const int* __restrict__ sum, float* __restrict__ y, int choices,
                                       int outputs, int splits, int pair_capacity) {
    const int row = blockIdx.x;
    const int block = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (block * ROTATION >= outputs) return;
    const int at = block * ROTATION + 4 * (threadIdx.x & 31);
    float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int choice = 0; choice < choices; choice++) {
        const int pair = row_pair[row * choices + choice];
        const float weight = row_weight[row * choices + choice];
        float v[4];
        finish_block(v, partial, svh + (size_t)pair_matrix[pair] * outputs, splits, pair_capacity, pair, at,
                     outputs, scale[pair], sum[pair]);
#pragma unroll
        for (int i = 0; i < 4; i++) total[i] = fmaf(weight, v[i], total[i]);
    }
    *(float4*)(y + (size_t)row * outputs + at) = make_float4(total[0], total[1], total[2], total[3]);
}
