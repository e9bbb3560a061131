// EXL3 (MUL1) products of few rows: rotate -> integer product -> rotate back, the last in whoever reads it.
//
// A *pair* is one row meeting one matrix. Pairs of a matrix are consecutive and form a *job*; a dense linear
// is one job whose pairs are the rows, experts are one job each. A launch may hold several *groups* (gate and
// up, or two projections of one input): the same jobs over other matrices, with pairs of their own.
//
// Macros: BITS_A, BITS_B (1..8; a matrix has one of the two), ROWS (1, 2, 4, 8, 16: most pairs of a job),
// TILES (n-tiles of 16 columns a warp holds), WARPS, DEPTH (loads in flight), BLOCKS (a processor, at least).

#include "exl3.cuh"

#ifndef BITS_A
#define BITS_A 3
#endif
#ifndef BITS_B
#define BITS_B BITS_A
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef TILES
#define TILES 4
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef DEPTH
#define DEPTH 2
#endif
#ifndef BLOCKS
#define BLOCKS 2
#endif
#define PASSES ((ROWS + 7) / 8)

// x fp32 [rows, inputs] -> rotated fp32 [groups, pairs, inputs], peaks fp32 [groups, pairs, inputs / 128].
// suh fp16 [groups, matrices, inputs]. Grid: (pairs, ceil(inputs / 128 / warps of a block), groups).
extern "C" __global__ void rotate_pairs(const float* x, const __half* suh,
                                        const int* pair_row, const int* pair_matrix,
                                        const int* pair_count, float* rotated,
                                        float* peaks, int inputs, int matrices) {
    let_next_begin();
    wait_for_earlier();
    const int pair = blockIdx.x, block = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (pair >= *pair_count || block * ROTATION >= inputs) return;
    const int at = block * ROTATION + 4 * (threadIdx.x & 31);
    const float4 loaded = *(const float4*)(x + (size_t)pair_row[pair] * inputs + at);
    float v[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    const size_t out = (size_t)blockIdx.z * gridDim.x + pair;
    store_rotated(v, suh + ((size_t)blockIdx.z * matrices + pair_matrix[pair]) * inputs, at, rotated + out * inputs,
                  peaks + out * (inputs / ROTATION));
}

__device__ __forceinline__ void mma(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The bytes of position P's codeword; a holds the lane's bits from its first window on, first bit on top.
template <int BITS, int P>
__device__ __forceinline__ u32 codeword(const u32 (&a)[3]) {
    constexpr int word = (P * BITS) / 32, offset = (P * BITS) % 32;
    u32 window;
    if constexpr (offset + 16 <= 32) window = (a[word] >> (16 - offset)) & 0xffffu;
    else window = __funnelshift_l(a[word + 1], a[word], offset) >> 16;
    return window * 0x83DCD12Du;
}

// Rotated rows of a job -> two signed bytes a value in shared memory, for k-tiles [first, end).
__device__ __forceinline__ void quantize_rows(i8* shared, int stride, const float* rotated, const float* peaks,
                                              int pairs, int inputs, int first, int end, float* scale_out,
                                              int* sums_out, bool publish) {
    __shared__ float largest[ROWS];
    __shared__ int total[ROWS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, blocks = inputs / ROTATION;
    for (int pair = warp; pair < pairs; pair += WARPS) {
        float peak = 0.0f;
        for (int i = lane; i < blocks; i += 32) peak = fmaxf(peak, peaks[(size_t)pair * blocks + i]);
        peak = warp_max(peak);
        if (lane == 0) {
            largest[pair] = peak;
            total[pair] = 0;
        }
    }
    __syncthreads();
    const int width = (end - first) * 16, pieces = (width + ROTATION - 1) / ROTATION;
    for (int item = warp; item < ROWS * pieces; item += WARPS) {
        const int pair = item / pieces, at = (item % pieces) * ROTATION + 4 * lane;
        if (pair >= pairs) break;
        int sum = 0;
        if (at < width) {
            const float inverse = largest[pair] > 0.0f ? ACTIVATION_MAX / largest[pair] : 0.0f;
            const float4 v = *(const float4*)(rotated + (size_t)pair * inputs + first * 16 + at);
            const int a[4] = {__float2int_rn(v.x * inverse), __float2int_rn(v.y * inverse),
                              __float2int_rn(v.z * inverse), __float2int_rn(v.w * inverse)};
            u32 high = 0, low = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int top = (a[i] + 128) >> 8;
                high |= (u32)(top & 255) << (8 * i);
                low |= (u32)(a[i] & 255) << (8 * i);
                sum += a[i];
            }
            *(u32*)(shared + (2 * pair) * stride + at) = high;
            *(u32*)(shared + (2 * pair + 1) * stride + at) = low;
        }
        if (publish) {
            sum = warp_sum(sum);
            if (lane == 0) atomicAdd(&total[pair], sum);
        }
    }
    __syncthreads();
    if (publish && threadIdx.x < pairs) {
        sums_out[threadIdx.x] = total[threadIdx.x];
        scale_out[threadIdx.x] = largest[threadIdx.x] / ACTIVATION_MAX;
    }
}

//   MMA row   0..7 high bytes of pairs 0..7,   8..15 low bytes of the same pairs
//   MMA k     four times each input row: the four bytes of a codeword meet the same activation
//
// The first tiles are asked for before `prepare` puts the activations in place.
template <int BITS, class Prepare>
__device__ __forceinline__ void multiply(int (&acc)[PASSES][TILES][2][4], const u32* matrix, const i8* shared,
                                         int stride, int first, int end, int n_tiles, int n_tile,
                                         const Prepare& prepare) {
    constexpr int WORDS = 8 * BITS;           // 32-bit words of a tile
    constexpr bool three = BITS >= 5;         // shift + 16 + 7 BITS can pass 64 bits
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane & 3, r = lane >> 2;
    // Lane t owns positions 8 t .. 8 t + 7; its first window begins at bit 8 t BITS + BITS - 16 of the ring.
    const int start = 8 * lane * BITS + BITS - 16, shift = start & 31;
    const int w0 = ((start >> 5) + WORDS) % WORDS, w1 = (w0 + 1) % WORDS, w2 = (w0 + 2) % WORDS;
    const size_t step = (size_t)WARPS * n_tiles * WORDS;
    const u32* p0 = matrix + ((size_t)(first + warp) * n_tiles + n_tile) * WORDS + w0;
    const u32* p1 = p0 + (w1 - w0);
    const u32* p2 = p0 + (w2 - w0);
    const int steps = (end - first - warp + WARPS - 1) / WARPS;

    u32 next[DEPTH][TILES][three ? 3 : 2];
    const auto load = [&](u32 (&to)[TILES][three ? 3 : 2]) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            to[i][0] = __ldg(p0 + i * WORDS);
            to[i][1] = __ldg(p1 + i * WORDS);
            if constexpr (three) to[i][2] = __ldg(p2 + i * WORDS);
        }
        p0 += step;
        p1 += step;
        if constexpr (three) p2 += step;
    };
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        if (d < steps) load(next[d]);
    prepare();

    const i8* rows[PASSES];
    u32 live[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const int pair = p * 8 + r;
        rows[p] = shared + 2 * min(pair, ROWS - 1) * stride + warp * 16 + 2 * q;
        live[p] = pair < ROWS ? 0xffffffffu : 0u;
    }
    const auto compute = [&](u32 (&from)[TILES][three ? 3 : 2], bool more) {
        u32 a[TILES][3];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            a[i][0] = __funnelshift_l(from[i][1], from[i][0], shift);
            if constexpr (three) {
                a[i][1] = __funnelshift_l(from[i][2], from[i][1], shift);
                a[i][2] = from[i][2] << shift;
            } else {
                a[i][1] = from[i][1] << shift;
                a[i][2] = 0;
            }
        }
        if (more) load(from);
        u32 A[PASSES][8];
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            const u32 h0 = *(const u16*)rows[p] & live[p], h1 = *(const u16*)(rows[p] + 8) & live[p];
            const u32 l0 = *(const u16*)(rows[p] + stride) & live[p];
            const u32 l1 = *(const u16*)(rows[p] + stride + 8) & live[p];
            A[p][0] = __byte_perm(h0, 0, 0x0000); A[p][1] = __byte_perm(l0, 0, 0x0000);
            A[p][2] = __byte_perm(h0, 0, 0x1111); A[p][3] = __byte_perm(l0, 0, 0x1111);
            A[p][4] = __byte_perm(h1, 0, 0x0000); A[p][5] = __byte_perm(l1, 0, 0x0000);
            A[p][6] = __byte_perm(h1, 0, 0x1111); A[p][7] = __byte_perm(l1, 0, 0x1111);
            rows[p] += WARPS * 16;
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const u32 x0 = codeword<BITS, 0>(a[i]), x1 = codeword<BITS, 1>(a[i]), x2 = codeword<BITS, 2>(a[i]),
                      x3 = codeword<BITS, 3>(a[i]), x4 = codeword<BITS, 4>(a[i]), x5 = codeword<BITS, 5>(a[i]),
                      x6 = codeword<BITS, 6>(a[i]), x7 = codeword<BITS, 7>(a[i]);
#pragma unroll
            for (int p = 0; p < PASSES; p++) {
                mma(acc[p][i][0], A[p][0], A[p][1], A[p][2], A[p][3], x0, x1);
                mma(acc[p][i][1], A[p][0], A[p][1], A[p][2], A[p][3], x4, x5);
                mma(acc[p][i][0], A[p][4], A[p][5], A[p][6], A[p][7], x2, x3);
                mma(acc[p][i][1], A[p][4], A[p][5], A[p][6], A[p][7], x6, x7);
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

// trellis u64 [groups, matrices]: address of each matrix's tiles [inputs/16, outputs/16, 8 K] u32; bits and
// outputs int32 [groups, matrices]. job_start [jobs + 1] in pairs, job_matrix [jobs], the same for all groups.
// fixed_jobs: no earlier kernel writes them, so that weights can be asked for before its end.
// -> partial int32 [splits, groups * pairs, 2, pitch], sums [splits, groups * pairs], scale [groups * pairs].
// Grid: (widest outputs / (16 TILES), splits, groups * most jobs); every WARPS-th k-tile of a split is a warp's.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    product_rows(const unsigned long long* trellis, const int* bits,
                 const int* outputs_of, const float* rotated,
                 const float* peaks, const int* job_start,
                 const int* job_matrix, const int* job_count, int* partial,
                 int* sums, float* scale, int inputs, int pitch, int matrices,
                 int pair_capacity, int groups, int fixed_jobs) {
    extern __shared__ __align__(16) i8 shared[];
    let_next_begin();
    if (!fixed_jobs) wait_for_earlier();
    // The last job comes first: a shared expert has more bits than the others.
    const int most_jobs = gridDim.z / groups, group = blockIdx.z / most_jobs;
    const int job = *job_count - 1 - blockIdx.z % most_jobs;
    if (job < 0) return;
    const int matrix = group * matrices + job_matrix[job];
    const int outputs = outputs_of[matrix];
    if (blockIdx.x * TILES * 16 >= outputs) return;
    const int k_tiles = inputs / 16, per_split = (k_tiles + gridDim.y - 1) / gridDim.y;
    const int first = blockIdx.y * per_split, end = min(k_tiles, first + per_split);
    const int stride = per_split * 16 + 16;  // + 16: rows in different banks
    const int pair = group * pair_capacity + job_start[job];
    const int pairs = min(job_start[job + 1] - job_start[job], ROWS);
    const size_t of_split = (size_t)blockIdx.y * groups * pair_capacity + pair;

    const auto prepare = [&] {
        if (fixed_jobs) wait_for_earlier();
        quantize_rows(shared, stride, rotated + (size_t)pair * inputs, peaks + (size_t)pair * (inputs / ROTATION),
                      pairs, inputs, first, end, scale + pair, sums + of_split, blockIdx.x == 0);
    };
    int acc[PASSES][TILES][2][4];
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[p][i][h][j] = 0;
    const u32* tiles = (const u32*)trellis[matrix];
    if (BITS_A == BITS_B || bits[matrix] == BITS_A)
        multiply<BITS_A>(acc, tiles, shared, stride, first, end, outputs / 16, blockIdx.x * TILES, prepare);
    else
        multiply<BITS_B>(acc, tiles, shared, stride, first, end, outputs / 16, blockIdx.x * TILES, prepare);

    // Sums over the warps: integers, so any order gives the same. Rows past `pairs` held stale bytes: dropped.
    constexpr int columns = TILES * 16;
    const int q = threadIdx.x & 3, r = (threadIdx.x & 31) >> 2;
    __syncthreads();
    int* totals = (int*)shared;
    for (int i = threadIdx.x; i < 2 * pairs * columns; i += WARPS * 32) totals[i] = 0;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int column = i * 16 + h * 8 + 2 * q, row = p * 8 + r;
                if (row < pairs) {
                    int* at = totals + row * 2 * columns + column;
                    atomicAdd(at, acc[p][i][h][0]);
                    atomicAdd(at + 1, acc[p][i][h][1]);
                    atomicAdd(at + columns, acc[p][i][h][2]);
                    atomicAdd(at + columns + 1, acc[p][i][h][3]);
                }
            }
    __syncthreads();
    for (int i = threadIdx.x; i < pairs * 2 * columns; i += WARPS * 32)
        partial[(of_split * 2 + i / columns) * pitch + blockIdx.x * columns + i % columns] = totals[i];
}

// One group's pairs -> y fp32 [pairs, outputs]. Grid: (pairs, ceil(outputs / 128 / warps of a block)).
extern "C" __global__ void finish_rows(const int* values, const int* sums,
                                       const float* scale, const __half* svh,
                                       const int* pair_matrix, const int* pair_count,
                                       float* y, int outputs, int pitch, int splits, int pairs,
                                       int first_pair) {
    let_next_begin();
    wait_for_earlier();
    const int pair = blockIdx.x, block = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (pair >= *pair_count || block * ROTATION >= outputs) return;
    const int at = block * ROTATION + 4 * (threadIdx.x & 31);
    const Partial partial = {values, sums, scale, splits, pairs, pitch};
    float v[4];
    finish_block(v, partial, first_pair + pair, svh + (size_t)pair_matrix[pair] * outputs, at);
    *(float4*)(y + (size_t)pair * outputs + at) = make_float4(v[0], v[1], v[2], v[3]);
}

// Gate (group 0) and up (group 1) -> the down projection's input: silu(min(gate, limit)) * clamp(up, ±limit),
// times suh, rotated. svh fp16 [2, matrices, width]. Grid: (pairs, ceil(width / 128 / warps of a block)).
extern "C" __global__ void finish_gate_up(const int* values, const int* sums,
                                          const float* scale, const __half* svh,
                                          const __half* down_suh,
                                          const int* pair_matrix,
                                          const int* pair_count, float* rotated,
                                          float* peaks, int width, int pitch, int matrices, int splits,
                                          float limit) {
    let_next_begin();
    wait_for_earlier();
    const int pair = blockIdx.x, block = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (pair >= *pair_count || block * ROTATION >= width) return;
    const int at = block * ROTATION + 4 * (threadIdx.x & 31), matrix = pair_matrix[pair];
    const Partial partial = {values, sums, scale, splits, 2 * (int)gridDim.x, pitch};
    float g[4], u[4];
    finish_block(g, partial, pair, svh + (size_t)matrix * width, at);
    finish_block(u, partial, gridDim.x + pair, svh + ((size_t)matrices + matrix) * width, at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float a = fminf(g[i], limit), b = fminf(fmaxf(u[i], -limit), limit);
        g[i] = a / (1.0f + expf(-a)) * b;
    }
    store_rotated(g, down_suh + (size_t)matrix * width, at, rotated + (size_t)pair * width,
                  peaks + (size_t)pair * (width / ROTATION));
}
